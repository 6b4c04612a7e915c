// Writes values as consecutive bytes and reads them back, field by field. Reading checks every length.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace springtide {

struct ByteWriter {
  std::vector<uint8_t>& bytes;

  void put(const void* from, size_t count) {
    const auto* first = static_cast<const uint8_t*>(from);
    bytes.insert(bytes.end(), first, first + count);
  }
  template <class T>
  void field(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(&value, sizeof value);
  }
  template <class Count, class T>
  void counted(const T& values) {  // a string or a vector, written after its number of elements
    field(static_cast<Count>(values.size()));
    put(values.data(), values.size() * sizeof values[0]);
  }
  template <class T>
  void field(const std::vector<T>& values) {
    counted<uint64_t>(values);
  }
};

// Throws `Error(torn)` if the bytes end in the middle of a field.
template <class Error>
struct ByteReader {
  std::span<const uint8_t> rest;
  const char* torn;

  std::span<const uint8_t> take(size_t count) {
    if (count > rest.size()) throw Error(torn);
    const auto head = rest.first(count);
    rest = rest.subspan(count);
    return head;
  }
  template <class T>
  void field(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  void field(bool& value) { value = take(1)[0] != 0; }
  template <class T>
  T get() {
    T value;
    field(value);
    return value;
  }
  // Checks the size before it allocates memory for the value.
  template <class T>
  void elements(T& values, uint64_t count) {
    if (count > rest.size() / sizeof values[0]) throw Error(torn);
    const auto from = take(count * sizeof values[0]);
    values.resize(count);
    if (count != 0) std::memcpy(values.data(), from.data(), from.size());
  }
  template <class Count, class T>
  void counted(T& values) {
    elements(values, get<Count>());
  }
  template <class T>
  void field(std::vector<T>& values) {
    counted<uint64_t>(values);
  }
  void finish() const {
    if (!rest.empty()) throw Error(torn);
  }
};

}  // namespace springtide
