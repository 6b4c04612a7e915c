// Any frame, declaration of tables or refusal is refused, or comes apart within its bytes and together again.
#include <algorithm>
#include <cstring>

#include "testing/fuzz.h"
#include "wire/wire.h"

namespace springtide::wire_fuzz {

namespace {

template <class T>
void is_within(std::span<const T> part, std::span<const uint8_t> whole) {
  const auto* first = reinterpret_cast<const uint8_t*>(part.data());
  HOLDS(part.empty() || (first >= whole.data() && first + part.size_bytes() <= whole.data() + whole.size()));
  HOLDS(part.empty() || reinterpret_cast<uintptr_t>(first) % alignof(T) == 0);
}

void read_frame(fuzz::Bytes bytes) {
  auto header = fuzz::take<FrameHeader>(bytes);
  header_error(header, 1 << 20);
  const uint64_t claimed = header.body_bytes;
  header.magic = kMagic, header.version = kVersion;
  seal(header);
  const std::string why = header_error(header, 1 << 20);
  HOLDS(why.empty() == (claimed <= 1 << 20 && header.kind != 0 && header.kind <= static_cast<uint8_t>(Kind::last)));
  std::vector<uint64_t> aligned((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const std::span<const uint8_t> body{reinterpret_cast<const uint8_t*>(aligned.data()), bytes.size()};
  BodyView view;
  if (!parse_body(header, body, view).empty()) return;
  is_within(view.batches, body), is_within(view.hypers, body), is_within(view.spans, body);
  is_within(view.slots, body), is_within(view.keys, body), is_within(view.tables, body);
  is_within(view.floats, body);
  FrameHeader again = header;
  const std::vector<uint8_t> prefix = encode_prefix(again, view.batches, view.hypers, view.spans, view.slots);
  HOLDS(prefix.size() == layout_of(header).keys && again.batches == header.batches);
  const size_t named = layout_of(header).slots + view.slots.size_bytes();  // then padding
  HOLDS(std::equal(prefix.begin(), prefix.begin() + static_cast<std::ptrdiff_t>(named), body.begin()));
}

}  // namespace

FUZZ(bytes) {
  const auto kind = fuzz::take<uint8_t>(bytes);
  if (kind % 4 == 0) return read_frame(bytes);
  if (kind % 4 == 1) {
    try {
      const std::vector<uint8_t> again = encode(decode_refusal(bytes));
      HOLDS(encode(decode_refusal(again)) == again);
    } catch (const PeerLost&) {
    }
    return;
  }
  try {
    const std::vector<uint8_t> again = encode_tables(decode_tables(bytes));
    HOLDS(again.size() == bytes.size() && encode_tables(decode_tables(again)) == again);
  } catch (const BadInput&) {
  }
}

}  // namespace springtide::wire_fuzz
