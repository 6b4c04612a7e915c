#include "slot_image.h"

#include <bit>
#include <cstring>
#include <string>

#include "half.h"
#include "hash.h"

namespace springtide {

namespace {

constexpr uint32_t kMagic = 0x53545353;  // "SSTS"
constexpr uint32_t kVersion = 2;

#pragma pack(push, 1)
struct Head {
  uint32_t magic, version;
  uint64_t bytes;     // of everything after this header
  uint64_t checksum;  // of everything after this header
};
struct SlotHead {
  uint32_t slot, slots;
  uint64_t seed, clock;
  uint8_t full;
  uint32_t tables;
  uint64_t spans, finished;  // of the identities
};
struct TableHead {
  uint16_t id;
  uint32_t dim;
  uint8_t dtype, optimizer;
  uint32_t state_floats;
  uint64_t rows, waiting, gone;
};
#pragma pack(pop)

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    append(&value, sizeof value);
  }
  template <class T>
  void put_all(const std::vector<T>& values) {
    append(values.data(), values.size() * sizeof(T));
  }
  std::vector<uint8_t> out;

 private:
  void append(const void* from, size_t bytes) {
    auto* first = static_cast<const uint8_t*>(from);
    out.insert(out.end(), first, first + bytes);
  }
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  // The size is checked before anything is allocated for it.
  template <class T>
  void get_all(std::vector<T>& values, uint64_t count) {
    if (count > rest_.size() / sizeof(T)) torn();
    const uint8_t* from = take(count * sizeof(T));
    values.resize(count);
    if (count != 0) std::memcpy(values.data(), from, count * sizeof(T));
  }
  void finish() const {
    if (!rest_.empty()) torn();
  }
  [[noreturn]] static void torn() { throw BadInput("slot image: cut short or damaged; fetch it again"); }

 private:
  const uint8_t* take(size_t bytes) {
    if (bytes > rest_.size()) torn();
    const uint8_t* at = rest_.data();
    rest_ = rest_.subspan(bytes);
    return at;
  }
  std::span<const uint8_t> rest_;
};

void write_table(Writer& w, const TableImage& t) {
  w.put(TableHead{t.id, t.dim, static_cast<uint8_t>(t.dtype), static_cast<uint8_t>(t.optimizer),
                  t.state_floats, t.rows.size(), t.waiting.size(), t.gone.size()});
  w.put_all(t.rows);
  w.put_all(t.row_ages);
  w.put_all(t.weights);
  w.put_all(t.state);
  w.put_all(t.waiting);
  w.put_all(t.waiting_ages);
  w.put_all(t.waiting_counts);
  w.put_all(t.gone);
}

TableImage read_table(Reader& r) {
  auto head = r.get<TableHead>();
  if (head.dtype > 2 || head.optimizer > 5) Reader::torn();
  TableImage t;
  t.id = head.id;
  t.dim = head.dim;
  t.dtype = static_cast<DType>(head.dtype);
  t.optimizer = static_cast<OptimKind>(head.optimizer);
  t.state_floats = head.state_floats;
  uint64_t weight_bytes = uint64_t{head.dim} * bytes_of(t.dtype),
           state_bytes = uint64_t{head.state_floats} * 4;
  r.get_all(t.rows, head.rows);
  r.get_all(t.row_ages, head.rows);
  if (weight_bytes != 0 && head.rows > UINT64_MAX / weight_bytes) Reader::torn();
  r.get_all(t.weights, head.rows * weight_bytes);
  if (state_bytes != 0 && head.rows > UINT64_MAX / state_bytes) Reader::torn();
  r.get_all(t.state, head.rows * state_bytes);
  r.get_all(t.waiting, head.waiting);
  r.get_all(t.waiting_ages, head.waiting);
  r.get_all(t.waiting_counts, head.waiting);
  r.get_all(t.gone, head.gone);
  return t;
}

template <class T>
size_t bytes_in(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

size_t size_of(const SlotImage& image) {
  size_t sum = sizeof(Head) + sizeof(SlotHead) + bytes_in(image.identities.spans()) +
               bytes_in(image.identities.finished());
  for (const TableImage& t : image.tables) {
    sum += sizeof(TableHead) + bytes_in(t.rows) + bytes_in(t.row_ages) + bytes_in(t.weights) +
           bytes_in(t.state) + bytes_in(t.waiting) + bytes_in(t.waiting_ages) + bytes_in(t.waiting_counts) +
           bytes_in(t.gone);
  }
  return sum;
}

void check_home(const SlotImage& image, const std::vector<uint64_t>& hashes) {
  for (uint64_t hash : hashes) {
    if (slot_of(hash, image.slots) != image.slot) Reader::torn();
  }
}

}  // namespace

// Four independent lanes, so that it runs at memory speed. Not against forgers: the wire has its own secret.
uint64_t checksum(std::span<const uint8_t> bytes) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    for (size_t k = 0; k < 4; ++k) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i + 8 * k, 8);
      lanes[k] = std::rotl((lanes[k] ^ word) * 0x9e3779b97f4a7c15ULL, 29);
    }
  }
  uint64_t sum = bytes.size();
  for (uint64_t lane : lanes) sum = mix64(sum ^ lane);
  for (; i < bytes.size(); ++i) sum = mix64(sum ^ bytes[i]);
  return sum;
}

std::vector<uint8_t> encode(const SlotImage& image) {
  Writer w;
  w.out.reserve(size_of(image));
  w.put(Head{kMagic, kVersion, 0, 0});
  w.put(SlotHead{image.slot, image.slots, image.seed, image.clock, image.full,
                 static_cast<uint32_t>(image.tables.size()), image.identities.spans().size(),
                 image.identities.finished().size()});
  w.put_all(image.identities.spans());
  w.put_all(image.identities.finished());
  for (const TableImage& table : image.tables) write_table(w, table);
  std::span<const uint8_t> body = std::span(w.out).subspan(sizeof(Head));
  Head head{kMagic, kVersion, body.size(), checksum(body)};
  std::memcpy(w.out.data(), &head, sizeof head);
  return std::move(w.out);
}

ImageFacts facts_of(std::span<const uint8_t> bytes) {
  Reader r(bytes);
  auto head = r.get<Head>();
  if (head.magic != kMagic) throw BadInput("slot image: these bytes are not one");
  auto slot = r.get<SlotHead>();
  return {slot.slot, slot.full != 0, head.checksum};
}

bool is_whole(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Head)) return false;
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::span<const uint8_t> body = bytes.subspan(sizeof head);
  return head.magic == kMagic && head.bytes == body.size() && head.checksum == checksum(body);
}

SlotImage decode(std::span<const uint8_t> bytes) {
  Reader r(bytes);
  auto head = r.get<Head>();
  if (head.magic != kMagic) throw BadInput("slot image: these bytes are not one");
  if (head.version != kVersion) {
    throw BadInput("slot image: version " + std::to_string(head.version) + ", this build reads version " +
                   std::to_string(kVersion));
  }
  std::span<const uint8_t> body = bytes.subspan(sizeof head);
  if (head.bytes != body.size() || head.checksum != checksum(body)) Reader::torn();
  auto slot = r.get<SlotHead>();
  SlotImage image{slot.slot, slot.slots, slot.seed, slot.clock, slot.full != 0, {}, {}};
  if (image.slots < kStripes || !std::has_single_bit(image.slots) || image.slot >= image.slots)
    Reader::torn();
  std::vector<SampleSpan> spans;
  std::vector<ShardRun> finished;
  r.get_all(spans, slot.spans);
  r.get_all(finished, slot.finished);
  image.identities = IdentitySet(std::move(spans), std::move(finished));
  for (uint32_t i = 0; i < slot.tables; ++i) {
    image.tables.push_back(read_table(r));
    check_home(image, image.tables.back().rows);
    check_home(image, image.tables.back().waiting);
    check_home(image, image.tables.back().gone);
  }
  r.finish();
  return image;
}

}  // namespace springtide
