#include "slots/slot_batch.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/byte_stream.h"
#include "base/half.h"
#include "base/types.h"

namespace springtide {

namespace {

constexpr size_t kPiecesACall = 1024;  // IOV_MAX

constexpr const char* kTornReference = "a slot by reference: cut short or damaged";

// The list of fields, used for encoding and decoding.
template <class Walker, class Table>
void walk(Walker& w, Table& t) {
  w.field(t.shape.id), w.field(t.shape.dim), w.field(t.shape.dtype), w.field(t.shape.optimizer);
  w.field(t.shape.state_floats), w.field(t.vector_bytes), w.field(t.number_bytes);
  w.field(t.rows), w.field(t.row_ages), w.field(t.weights_at), w.field(t.vectors_at), w.field(t.numbers_at);
  w.field(t.waiting), w.field(t.waiting_ages), w.field(t.waiting_counts), w.field(t.gone);
}

// Throws if columns have different lengths, or if rows have another size than the table says.
void check(TableReference& t) {
  const size_t rows = t.rows.size();
  const size_t vectors = t.vector_bytes != 0 ? rows : 0, numbers = t.number_bytes != 0 ? rows : 0;
  throw_if<BadInput>(t.row_ages.size() != rows || t.weights_at.size() != rows || t.vectors_at.size() != vectors ||
                         t.numbers_at.size() != numbers || t.waiting_ages.size() != t.waiting.size() ||
                         t.waiting_counts.size() != t.waiting.size() || t.shape.dtype > DType::bf16 ||
                         t.shape.optimizer > OptimKind::ftrl ||
                         uint64_t{t.shape.state_floats} * 4 != uint64_t{t.vector_bytes} + t.number_bytes,
                     kTornReference);
  t.shape.rows = rows, t.shape.waiting = t.waiting.size(), t.shape.gone = t.gone.size();
}

iovec piece(uint64_t address, size_t bytes) {
  return {reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes};  // NOLINT: of another process
}

// Reads all pieces, in order, into contiguous memory.
void read_memory(int process, std::span<iovec> from, uint8_t* to) {
  for (size_t first = 0; first < from.size(); first += kPiecesACall) {
    const auto some = from.subspan(first, std::min(kPiecesACall, from.size() - first));
    size_t bytes = 0;
    for (const iovec& each : some) bytes += each.iov_len;
    iovec here{to, bytes};
    const ssize_t got = process_vm_readv(process, &here, 1, some.data(), some.size(), 0);
    if (got < 0) throw BadInput("its memory cannot be read from here: ", std::strerror(errno));
    if (static_cast<size_t>(got) != bytes) throw BadInput("a part of its memory cannot be read");
    to += bytes;
  }
}

template <class T>
void put_all(uint8_t* at, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(at, values.data(), values.size() * sizeof(T));
}

struct PartHead {
  uint64_t slot, transfer, bytes;
};

using Reader = ByteReader<BadInput>;
constexpr const char* kTornBatch = "a batch of slots is cut short or damaged";

}  // namespace

void BatchWriter::begin(uint16_t slot, uint64_t transfer) {
  ByteWriter{bytes_}.field(PartHead{slot, transfer, 0});
  began_ = bytes_.size();
}

void BatchWriter::add(std::span<const uint8_t> image) { ByteWriter{bytes_}.put(image.data(), image.size()); }

void BatchWriter::end() {
  const uint64_t size = bytes_.size() - began_;
  std::memcpy(bytes_.data() + began_ - sizeof size, &size, sizeof size);
}

SlotBatch decode_batch(std::span<const uint8_t> bytes) {
  SlotBatch batch;
  Reader r{bytes, kTornBatch};
  r.field(batch.by_reference);
  while (!r.rest.empty()) {
    const auto head = r.get<PartHead>();
    if (head.slot > UINT16_MAX) throw BadInput(kTornBatch);
    batch.parts.push_back({static_cast<uint16_t>(head.slot), head.transfer, r.take(head.bytes)});
  }
  return batch;
}

std::vector<uint8_t> encode(const BatchAnswer& answer) {
  std::vector<uint8_t> bytes;
  ByteWriter w{bytes};
  w.counted<uint32_t>(answer.taken);
  w.put(answer.why.data(), answer.why.size());
  return bytes;
}

BatchAnswer decode_answer(std::span<const uint8_t> bytes) {
  BatchAnswer answer;
  Reader r{bytes, kTornBatch};
  r.counted<uint32_t>(answer.taken);
  answer.why.assign(r.rest.begin(), r.rest.end());
  return answer;
}

void encode(const SlotReference& slot, std::vector<uint8_t>& to) {
  ByteWriter w{to};
  const SlotImage& about = slot.about;
  w.field(about.slot), w.field(about.slots), w.field(about.seed), w.field(about.clock);
  w.field(about.identities.runs());
  w.field(static_cast<uint32_t>(slot.tables.size()));
  for (const TableReference& table : slot.tables) walk(w, table);
}

SlotReference decode_reference(std::span<const uint8_t> bytes) {
  Reader r{bytes, kTornReference};
  SlotReference slot;
  std::vector<SampleRun> runs;
  uint32_t tables = 0;
  r.field(slot.about.slot), r.field(slot.about.slots), r.field(slot.about.seed), r.field(slot.about.clock);
  r.field(runs), r.field(tables);
  slot.about.identities = IdentitySet(std::move(runs));
  for (uint32_t i = 0; i < tables; ++i) {
    walk(r, slot.tables.emplace_back());
    check(slot.tables.back());
  }
  r.finish();
  return slot;
}

void read_slot(int process, const SlotReference& slot, ImageWriter& to) {
  std::vector<TableShape> shapes;
  for (const TableReference& table : slot.tables) shapes.push_back(table.shape);
  to.begin(slot.about, shapes);
  std::vector<iovec> pieces;
  for (size_t i = 0; i < slot.tables.size(); ++i) {
    const TableReference& table = slot.tables[i];
    const TableColumns& column = to.columns(i);
    put_all(column.rows, table.rows), put_all(column.row_ages, table.row_ages);
    put_all(column.waiting, table.waiting), put_all(column.waiting_ages, table.waiting_ages);
    put_all(column.waiting_counts, table.waiting_counts), put_all(column.gone, table.gone);
    const size_t weight_bytes = size_t{table.shape.dim} * bytes_of(table.shape.dtype);
    pieces.clear();
    for (const uint64_t at : table.weights_at) pieces.push_back(piece(at, weight_bytes));
    read_memory(process, pieces, column.weights);
    pieces.clear();
    for (size_t row = 0; row < table.rows.size(); ++row) {
      if (table.vector_bytes != 0) pieces.push_back(piece(table.vectors_at[row], table.vector_bytes));
      if (table.number_bytes != 0) pieces.push_back(piece(table.numbers_at[row], table.number_bytes));
    }
    read_memory(process, pieces, column.state);
  }
  to.finish();
}

}  // namespace springtide
