// Reads and creates torch tensors without linking torch, through DLPack's exchange API
// (torch.Tensor.__dlpack_c_exchange_api__, torch 2.10 and later). In: a list of tensors, or parts of a
// payload. Out: a key of their layout and their addresses, or tensors. Used by
// dataworker/transport/layout.py, which has a Python path for older versions.
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/types.h"
#include "bindings/batch/fused.h"
#include "bindings/bindings.h"

using namespace nb::literals;
using namespace springtide;

namespace {

using View = nb::dlpack::dltensor;
constexpr int32_t kCpu = 1;
constexpr uint32_t kMajor = 1;

struct Managed {  // DLManagedTensorVersioned
  uint32_t major, minor;
  void* context;
  void (*deleter)(Managed*);
  uint64_t flags;
  View view;
};

struct Table {  // DLPackExchangeAPI
  uint32_t major, minor;
  Table* before;
  void* allocate;
  void* managed_of;
  int (*tensor_of)(Managed*, void**);
  int (*view_of)(void*, View*);
};

const Table& table_of(nb::handle capsule) {
  auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) throw nb::python_error();
  if (table->major != kMajor || table->tensor_of == nullptr || table->view_of == nullptr) {
    throw BadInput("a table of DLPack " + std::to_string(table->major) + "; wanted " + std::to_string(kMajor));
  }
  return *table;
}

bool dense(const View& view) {
  if (view.strides == nullptr) return true;
  int64_t step = 1;
  for (int32_t axis = view.ndim; axis-- > 0;) {
    if (view.shape[axis] == 0) return true;
    if (view.shape[axis] != 1 && view.strides[axis] != step) return false;
    step *= view.shape[axis];
  }
  return true;
}

// Dtypes and shapes as bytes, equal only for equal ones, and the tensors' addresses as bytes too; None if one
// is not dense memory of the CPU. Whether values are as they lie there (no negation put off) is not known
// here.
nb::object look(nb::handle capsule, nb::list tensors) {
  const Table& table = table_of(capsule);
  std::vector<int64_t> key;
  key.reserve(4 * tensors.size());
  std::vector<uint64_t> addresses;
  addresses.reserve(tensors.size());
  for (nb::handle tensor : tensors) {
    View view = {};
    if (table.view_of(tensor.ptr(), &view) != 0) {
      PyErr_Clear();
      return nb::none();
    }
    if (view.device.device_type != kCpu || !dense(view)) return nb::none();
    int32_t type = 0;
    std::memcpy(&type, &view.dtype, sizeof(type));
    key.push_back(int64_t{type} << 32 | view.ndim);
    key.insert(key.end(), view.shape, view.shape + view.ndim);
    addresses.push_back(reinterpret_cast<uintptr_t>(view.data) + view.byte_offset);
  }
  return nb::make_tuple(nb::bytes(key.data(), key.size() * sizeof(int64_t)),
                        nb::bytes(addresses.data(), addresses.size() * sizeof(uint64_t)));
}

// Where the tensors of a batch go in its payload: those that have bytes.
class Layout {
 public:
  // told: (place among the tensors, offset, bytes) of each.
  explicit Layout(nb::list told) {
    for (nb::handle one : told) {
      const auto fields = nb::cast<nb::tuple>(one);
      places_.push_back(nb::cast<size_t>(fields[0]));
      pieces_.push_back({nb::cast<uint64_t>(fields[1]), nullptr, nb::cast<uint64_t>(fields[2])});
    }
  }

  // None if one of them has no memory: zeros that nobody has written anywhere.
  nb::object at(nb::bytes addresses) const {
    const auto* all = static_cast<const std::byte*>(addresses.data());
    Pieces pieces{pieces_};
    for (size_t number = 0; number < places_.size(); ++number) {
      if ((places_[number] + 1) * sizeof(uint64_t) > addresses.size()) throw BadInput("fewer addresses than tensors");
      uint64_t address = 0;
      std::memcpy(&address, all + places_[number] * sizeof(uint64_t), sizeof(address));
      if (address == 0) return nb::none();
      pieces.all[number].data = reinterpret_cast<const std::byte*>(address);
    }
    return nb::cast(std::move(pieces));
  }

 private:
  std::vector<size_t> places_;
  std::vector<Piece> pieces_;
};

struct Part {
  uint64_t offset;
  nb::dlpack::dtype type;
  std::vector<int64_t> shape, strides;
};

// The tensors of one payload: they hold its memory together, and free it with the last of them, in whatever
// thread.
struct Shelf {
  std::shared_ptr<const std::vector<Part>> parts;
  PyObject* holder;
  std::vector<Managed> managed;
  std::atomic<size_t> left;

  static void drop(Managed* one) {
    auto* shelf = static_cast<Shelf*>(one->context);
    if (shelf->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (Py_IsInitialized()) {
      nb::gil_scoped_acquire hold;
      Py_DECREF(shelf->holder);
    }
    delete shelf;
  }
};

// Where tensors lie in a payload. Offsets were checked against its size by who made the list.
class TensorPlan {
 public:
  // `like`: tensors of the dtypes in question; told: (place in `like`, shape, offset) of each tensor.
  TensorPlan(nb::handle capsule, nb::list like, nb::list told, uint64_t size)
      : table_(table_of(capsule)), size_(size), parts_(std::make_shared<std::vector<Part>>()) {
    for (nb::handle one : told) {
      const auto fields = nb::cast<nb::tuple>(one);
      View view = {};
      if (table_.view_of(like[nb::cast<size_t>(fields[0])].ptr(), &view) != 0) throw nb::python_error();
      Part part{nb::cast<uint64_t>(fields[2]), view.dtype, nb::cast<std::vector<int64_t>>(fields[1]), {}};
      part.strides.resize(part.shape.size());
      uint64_t elements = 1;
      for (size_t axis = part.shape.size(); axis-- > 0;) {
        part.strides[axis] = static_cast<int64_t>(elements);
        if (part.shape[axis] < 0) throw BadInput("a tensor of a negative length");
        elements *= static_cast<uint64_t>(part.shape[axis]);
      }
      const uint64_t bytes = elements * (view.dtype.bits * view.dtype.lanes / 8);
      if (part.offset > size || bytes > size - part.offset) {
        throw BadInput("a tensor that ends after the " + std::to_string(size) + " bytes that there are");
      }
      parts_->push_back(std::move(part));
    }
  }

  nb::list make(nb::handle payload) const {
    Py_buffer buffer;
    if (PyObject_GetBuffer(payload.ptr(), &buffer, PyBUF_WRITABLE) != 0) throw nb::python_error();
    auto* begin = static_cast<std::byte*>(buffer.buf);
    const auto there = static_cast<uint64_t>(buffer.len);
    PyBuffer_Release(&buffer);
    if (there < size_)
      throw BadInput("a payload of " + std::to_string(there) + " bytes; wanted " + std::to_string(size_));
    nb::list made;
    if (parts_->empty()) return made;
    auto* shelf = new Shelf{parts_, payload.inc_ref().ptr(), std::vector<Managed>(parts_->size()), parts_->size()};
    for (size_t place = 0; place < parts_->size(); ++place) {
      Managed& one = shelf->managed[place];
      const Part& part = (*parts_)[place];
      one.major = table_.major;
      one.minor = table_.minor;
      one.context = shelf;
      one.deleter = Shelf::drop;
      one.view.data = begin + part.offset;
      one.view.device = {kCpu, 0};
      one.view.ndim = static_cast<int32_t>(part.shape.size());
      one.view.dtype = part.type;
      one.view.shape = const_cast<int64_t*>(part.shape.data());  // torch copies both
      one.view.strides = const_cast<int64_t*>(part.strides.data());
      void* tensor = nullptr;
      if (table_.tensor_of(&one, &tensor) != 0) throw nb::python_error();  // the rest stays allocated: no second free
      made.append(nb::steal(static_cast<PyObject*>(tensor)));
    }
    return made;
  }

 private:
  const Table& table_;
  uint64_t size_;
  std::shared_ptr<std::vector<Part>> parts_;
};

}  // namespace

void bind_tensors(nb::module_& m) {
  m.def("look_at_tensors", &look, "table"_a, "tensors"_a,
        "Dtypes and shapes as a key, and addresses (uint64 each); None if one is not dense memory of the CPU.");
  nb::class_<Layout>(m, "Layout")
      .def(nb::init<nb::list>(), "told"_a, "Of tensors (place, offset, bytes) in a payload.")
      .def("at", &Layout::at, "addresses"_a, nb::sig("def at(self, addresses: bytes) -> Pieces | None"),
           "What tensors at these addresses are in the payload; None: one has no memory.");
  nb::class_<TensorPlan>(m, "TensorPlan")
      .def(nb::init<nb::handle, nb::list, nb::list, uint64_t>(), "table"_a, "like"_a, "told"_a, "size"_a,
           "Of tensors (place of its dtype in `like`, shape, offset) in a payload of that size.")
      .def("make", &TensorPlan::make, "payload"_a, "Tensors over a writable buffer, each with a storage of its own.");
}
