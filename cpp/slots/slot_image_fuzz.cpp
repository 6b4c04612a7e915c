// Any bytes are refused as a slot image, or a store imports and exports them without losing a row.
#include <algorithm>

#include "slots/slot_image.h"
#include "store/store.h"
#include "testing/fuzz.h"

namespace springtide::slot_image_fuzz {

namespace {

constexpr uint32_t kSlots = 64;
constexpr size_t kHead = 24;

TableSpec spec_of(TableId id, uint32_t dim, DType dtype, OptimKind optimizer) {
  TableSpec spec;
  spec.id = id;
  spec.name = "table " + std::to_string(id);
  spec.dim = dim;
  spec.dtype = dtype;
  spec.optim.kind = optimizer;
  spec.min_count = id == 7 ? 2 : 0;
  spec.ttl = id == 9 ? 5 : 0;
  return spec;
}

void declare_all(Store& store) {
  store.declare(spec_of(3, 2, DType::f32, OptimKind::adagrad));
  store.declare(spec_of(7, 4, DType::bf16, OptimKind::adam));
  store.declare(spec_of(9, 1, DType::f16, OptimKind::ftrl));
}

size_t rows_in(const SlotImage& image) {
  size_t rows = 0;
  for (const TableImage& table : image.tables) rows += table.rows.size();
  return rows;
}

void import_and_export(std::span<const uint8_t> bytes, uint32_t slot) {
  Store store({.slots = kSlots, .seed = 5, .reserve_bytes = 16 << 20});
  declare_all(store);
  try {
    store.import_slot(bytes);
  } catch (const BadInput&) {
    HOLDS(store.rows() == 0);
    return;
  }
  const std::vector<uint8_t> again = store.export_slot(slot);
  HOLDS(is_whole(again));
  HOLDS(rows_in(decode(again)) <= rows_in(decode(bytes)));  // less if a key is there twice, or a row is too old
  Store other({.slots = kSlots, .seed = 5, .reserve_bytes = 16 << 20});
  declare_all(other);
  other.import_slot(again);
  HOLDS(other.export_slot(slot) == again);
}

}  // namespace

FUZZ(bytes) {
  std::vector<uint8_t> image(bytes.begin(), bytes.end());
  for (int repaired = 0; repaired < 2; ++repaired) {
    try {
      const ImageInfo info = image_info(image);
      const SlotImage read = decode(image);
      HOLDS(is_whole(image) && info.slot == read.slot && read.slots >= kSlots);
      import_and_export(image, read.slot);
    } catch (const BadInput&) {
    }
    if (image.size() < kHead) return;
    // Once more with a head that fits the rest, as every change breaks the checksum.
    Checksum sum;
    sum.add(std::span<const uint8_t>(image).subspan(kUnsummed));
    std::ranges::copy(signature(image.size(), sum), image.begin());
  }
}

}  // namespace springtide::slot_image_fuzz
