#include "wire/wire_tables.h"

#include <cstring>
#include <type_traits>

namespace springtide {
namespace {

struct Writer {
  std::vector<uint8_t> bytes;
  template <class T>
  void field(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  }
  void field(const bool& value) { bytes.push_back(value ? 1 : 0); }
  void field(const std::string& value) {
    field(static_cast<uint32_t>(value.size()));
    bytes.insert(bytes.end(), value.begin(), value.end());
  }
};

struct Reader {
  std::span<const uint8_t> bytes;
  std::span<const uint8_t> take(size_t count) {
    if (count > bytes.size()) throw BadInput("a declaration of tables ends in the middle of a field");
    const auto head = bytes.first(count);
    bytes = bytes.subspan(count);
    return head;
  }
  template <class T>
  void field(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  void field(bool& value) { value = take(1)[0] != 0; }
  void field(std::string& value) {
    uint32_t size = 0;
    field(size);
    if (size > kMaxTableName) throw BadInput("a table's name is longer than 4096 bytes");
    const auto text = take(size);
    value.assign(text.begin(), text.end());
  }
};

// The one list of fields, walked by both directions.
template <class Walker, class Spec>
void walk(Walker& w, Spec& spec) {
  w.field(spec.id), w.field(spec.name), w.field(spec.dim), w.field(spec.dtype);
  w.field(spec.init.kind), w.field(spec.init.a), w.field(spec.init.b);
  auto& o = spec.optim;
  w.field(o.kind), w.field(o.momentum), w.field(o.dampening), w.field(o.nesterov), w.field(o.beta1), w.field(o.beta2);
  w.field(o.eps_outside), w.field(o.decoupled_decay), w.field(o.eps), w.field(o.alpha), w.field(o.ftrl_beta);
  w.field(o.l1), w.field(o.l2), w.field(o.initial_accumulator);
  w.field(spec.min_count), w.field(spec.ttl), w.field(spec.capacity_rows);
}

void check(const TableSpec& spec) {
  if (spec.dtype > DType::bf16 || spec.init.kind > InitKind::xavier || spec.optim.kind > OptimKind::ftrl) {
    throw BadInput("table '" + spec.name + "' is declared with a dtype, init or optimizer that does not exist");
  }
}

}  // namespace

std::vector<uint8_t> encode_tables(std::span<const TableSpec> tables) {
  Writer writer;
  writer.field(static_cast<uint32_t>(tables.size()));
  for (const TableSpec& spec : tables) walk(writer, spec);
  return std::move(writer.bytes);
}

std::vector<TableSpec> decode_tables(std::span<const uint8_t> bytes) {
  Reader reader{bytes};
  uint32_t count = 0;
  reader.field(count);
  std::vector<TableSpec> tables;
  for (uint32_t i = 0; i < count; ++i) {  // grows with what is really there, whatever the count claims
    TableSpec spec;
    walk(reader, spec);
    check(spec);
    tables.push_back(std::move(spec));
  }
  if (!reader.bytes.empty()) throw BadInput("a declaration of tables has bytes after its end");
  return tables;
}

}  // namespace springtide
