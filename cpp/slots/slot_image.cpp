#include "slots/slot_image.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/byte_stream.h"
#include "base/half.h"
#include "base/hash.h"

namespace springtide {

namespace {

constexpr uint32_t kImageMagic = 0x53545353;  // "SSTS"
constexpr uint32_t kImageVersion = 4;
constexpr size_t kLeastRoom = 64 << 10, kPage = 4096;

#pragma pack(push, 1)
struct Head {
  uint32_t magic, version;
  uint64_t bytes;     // size of all data after this header
  uint64_t checksum;  // checksum of all data after this header
};
struct SlotHead {
  uint32_t slot, slots;
  uint64_t seed, clock;
  uint8_t full;
  uint32_t tables;
  uint64_t runs;  // number of runs of the identities, which follow the tables
};
struct TableHead {
  uint16_t id;
  uint32_t dim;
  uint8_t dtype, optimizer;
  uint32_t state_floats;
  uint64_t rows, waiting, gone;
};
#pragma pack(pop)

constexpr const char* kTorn = "slot image: cut short or damaged; fetch it again";

[[noreturn]] void torn() { throw BadInput(kTorn); }

struct ImageReader : ByteReader<BadInput> {
  explicit ImageReader(std::span<const uint8_t> bytes) : ByteReader{bytes, kTorn} {}
  template <class T>
  Column<T> column(uint64_t count) {
    if (count > rest.size() / sizeof(T)) throw BadInput(kTorn);
    return {take(count * sizeof(T)).data(), count};
  }
};

TableImage read_table(ImageReader& r) {
  auto head = r.get<TableHead>();
  if (head.dtype > 2 || head.optimizer > 5) torn();
  TableImage t{
      {head.id, head.dim, static_cast<DType>(head.dtype), static_cast<OptimKind>(head.optimizer), head.state_floats}};
  uint64_t weight_bytes = uint64_t{head.dim} * bytes_of(t.dtype), state_bytes = uint64_t{head.state_floats} * 4;
  t.rows = r.column<uint64_t>(head.rows);
  t.row_ages = r.column<uint64_t>(head.rows);
  if (weight_bytes != 0 && head.rows > UINT64_MAX / weight_bytes) torn();
  t.weights = r.column<uint8_t>(head.rows * weight_bytes);
  if (state_bytes != 0 && head.rows > UINT64_MAX / state_bytes) torn();
  t.state = r.column<uint8_t>(head.rows * state_bytes);
  t.waiting = r.column<uint64_t>(head.waiting);
  t.waiting_ages = r.column<uint64_t>(head.waiting);
  t.waiting_counts = r.column<uint32_t>(head.waiting);
  t.gone = r.column<uint64_t>(head.gone);
  return t;
}

SlotImage read_slot(ImageReader& r) {
  auto slot = r.get<SlotHead>();
  SlotImage image{slot.slot, slot.slots, slot.seed, slot.clock, slot.full != 0, {}, {}};
  for (uint32_t i = 0; i < slot.tables; ++i) image.tables.push_back(read_table(r));
  std::vector<SampleRun> runs;
  r.elements(runs, slot.runs);
  image.identities = IdentitySet(std::move(runs));
  return image;
}

template <class T>
size_t bytes_in(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

void check_home(const SlotImage& image, const Column<uint64_t>& hashes) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (slot_of(hashes[i], image.slots) != image.slot) torn();
  }
}

}  // namespace

void Checksum::add_blocks(const uint8_t* at, size_t blocks) {
  uint64_t lanes[4];
  std::copy_n(lanes_, 4, lanes);  // a local copy, which stays in registers
  for (; blocks != 0; --blocks, at += kBlock) {
    for (size_t k = 0; k < 4; ++k) {
      uint64_t word;
      std::memcpy(&word, at + 8 * k, 8);
      lanes[k] = std::rotl((lanes[k] ^ word) * 0x9e3779b97f4a7c15ULL, 29);
    }
  }
  std::copy_n(lanes, 4, lanes_);
}

void Checksum::add(std::span<const uint8_t> bytes) {
  bytes_ += bytes.size();
  if (rests_ != 0) {
    const size_t some = std::min(kBlock - rests_, bytes.size());
    std::copy_n(bytes.data(), some, rest_ + rests_);
    rests_ += some;
    bytes = bytes.subspan(some);
    if (rests_ < kBlock) return;
    add_blocks(rest_, 1);
  }
  const size_t blocks = bytes.size() / kBlock;
  add_blocks(bytes.data(), blocks);
  rests_ = bytes.size() - blocks * kBlock;
  std::copy_n(bytes.data() + blocks * kBlock, rests_, rest_);
}

uint64_t Checksum::value() const {
  uint64_t sum = bytes_;
  for (uint64_t lane : lanes_) sum = mix64(sum ^ lane);
  for (size_t i = 0; i < rests_; ++i) sum = mix64(sum ^ rest_[i]);
  return sum;
}

uint64_t checksum(std::span<const uint8_t> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

size_t ImageWriter::bytes_of_image(const SlotImage& about, std::span<const TableShape> shapes) {
  size_t bytes = sizeof(Head) + sizeof(SlotHead) + bytes_in(about.identities.runs());
  for (const TableShape& t : shapes) {
    uint64_t row_bytes = 16 + uint64_t{t.dim} * bytes_of(t.dtype) + uint64_t{t.state_floats} * 4;
    bytes += sizeof(TableHead) + t.rows * row_bytes + t.waiting * 20 + t.gone * 8;
  }
  return bytes;
}

void ImageWriter::reserve_more(size_t bytes) {
  capacity_ = std::max(bytes + bytes / 4, kLeastRoom);
  buffer_ = std::make_unique_for_overwrite<uint8_t[]>(capacity_);
  for (size_t at = 0; at < capacity_; at += kPage) buffer_[at] = 0;
}

ImageHeads heads_of(const SlotImage& about, std::span<const TableShape> shapes) {
  ImageHeads heads;
  heads.slot.resize(sizeof(Head));
  const SlotHead slot{about.slot,
                      about.slots,
                      about.seed,
                      about.clock,
                      about.full,
                      static_cast<uint32_t>(shapes.size()),
                      about.identities.runs().size()};
  ByteWriter{heads.slot}.field(slot);
  for (const TableShape& t : shapes) {
    const TableHead table{
        t.id,      t.dim, static_cast<uint8_t>(t.dtype), static_cast<uint8_t>(t.optimizer), t.state_floats, t.rows,
        t.waiting, t.gone};
    ByteWriter{heads.tables.emplace_back()}.field(table);
  }
  return heads;
}

std::array<uint8_t, kUnsummed> signature(uint64_t bytes, const Checksum& follow) {
  return std::bit_cast<std::array<uint8_t, kUnsummed>>(
      Head{kImageMagic, kImageVersion, bytes - sizeof(Head), follow.value()});
}

void ImageWriter::begin(const SlotImage& about, std::span<const TableShape> shapes) {
  const ImageHeads heads = heads_of(about, shapes);
  full_ = about.full;
  size_ = bytes_of_image(about, shapes);
  identity_bytes_ = bytes_in(about.identities.runs());
  make_room_for(size_);
  at_ = size_ <= room_.size() ? room_.data() : buffer_.get();
  uint8_t* at = std::copy(heads.slot.begin(), heads.slot.end(), at_);
  const auto leave = [&](size_t bytes) { return std::exchange(at, at + bytes); };
  columns_.clear();
  for (size_t i = 0; i < shapes.size(); ++i) {
    const TableShape& t = shapes[i];
    at = std::copy(heads.tables[i].begin(), heads.tables[i].end(), at);
    TableColumns c{};
    c.rows = leave(t.rows * 8);
    c.row_ages = leave(t.rows * 8);
    c.weights = leave(t.rows * t.dim * bytes_of(t.dtype));
    c.state = leave(t.rows * t.state_floats * 4);
    c.waiting = leave(t.waiting * 8);
    c.waiting_ages = leave(t.waiting * 8);
    c.waiting_counts = leave(t.waiting * 4);
    c.gone = leave(t.gone * 8);
    columns_.push_back(c);
  }
  if (identity_bytes_ != 0) std::memcpy(at, about.identities.runs().data(), identity_bytes_);
}

void ImageWriter::finish() {
  Checksum sum;
  sum.add(bytes().subspan(kUnsummed));
  std::ranges::copy(signature(size_, sum), at_);
}

// Returns the header of an image, if this build can read the image.
static Head head_of(ImageReader& r) {
  auto head = r.get<Head>();
  if (head.magic != kImageMagic) throw BadInput("slot image: unknown format");
  throw_if<BadInput>(head.version != kImageVersion, "slot image: version ", head.version, ", this build reads version ",
                     kImageVersion, "; use the version of Springtide that wrote it");
  return head;
}

ImageInfo image_info(std::span<const uint8_t> bytes) {
  ImageReader r(bytes);
  Head head = head_of(r);
  auto slot = r.get<SlotHead>();
  return {slot.slot, slot.full != 0, head.checksum};
}

bool is_whole(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Head)) return false;
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::span<const uint8_t> body = bytes.subspan(sizeof head);
  return head.magic == kImageMagic && head.bytes == body.size() && head.checksum == checksum(body);
}

SlotImage decode(std::span<const uint8_t> bytes) {
  ImageReader r(bytes);
  Head head = head_of(r);
  std::span<const uint8_t> body = bytes.subspan(sizeof head);
  if (head.bytes != body.size() || head.checksum != checksum(body)) torn();
  SlotImage image = read_slot(r);
  if (image.slots < kStripes || !std::has_single_bit(image.slots) || image.slot >= image.slots) torn();
  for (const TableImage& table : image.tables) {
    check_home(image, table.rows);
    check_home(image, table.waiting);
    check_home(image, table.gone);
  }
  r.finish();
  return image;
}

SlotImage view(std::span<const uint8_t> bytes) {
  ImageReader r(bytes.subspan(sizeof(Head)));
  return read_slot(r);
}

}  // namespace springtide
