// Payloads of data workers: sends or copies pieces of a batch, receives messages, and reads and creates torch tensors.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "batch/batch_payload.h"
#include "bindings/bindings.h"
#include "net/tls_session.h"

using namespace springtide;

namespace {

// Pieces of a payload: (offset, address, size) each. Python owns the memory.
struct Pieces {
  std::vector<Piece> all;
};

std::vector<Piece> listed(nb::list told) {
  std::vector<Piece> pieces;
  pieces.reserve(told.size());
  for (nb::handle one : told) {
    const auto fields = nb::cast<nb::tuple>(one);
    if (fields.size() != 3) throw BadInput("a piece: wanted (offset, address, size)");
    pieces.push_back({nb::cast<uint64_t>(fields[0]), reinterpret_cast<const std::byte*>(nb::cast<uintptr_t>(fields[1])),
                      nb::cast<uint64_t>(fields[2])});
  }
  return pieces;
}

nb::list told(const Pieces& pieces) {
  nb::list all;
  for (const Piece& one : pieces.all) {
    all.append(nb::make_tuple(one.offset, reinterpret_cast<uintptr_t>(one.data), one.size));
  }
  return all;
}

// Throws BadInput unless pieces_fit() is true.
std::vector<Piece> read_pieces(nb::handle told, uint64_t capacity) {
  std::vector<Piece> pieces =
      nb::isinstance<Pieces>(told) ? nb::cast<const Pieces&>(told).all : listed(nb::cast<nb::list>(told));
  throw_if<BadInput>(!pieces_fit(pieces, capacity), "pieces that overlap, or end after the ", capacity,
                     " bytes that there are");
  return pieces;
}

std::span<const std::byte> span_of(const nb::bytes& data) {
  return {static_cast<const std::byte*>(data.data()), data.size()};
}

nb::bytes bytes_of(std::span<const std::byte> data) { return nb::bytes(data.data(), data.size()); }

nb::tuple receive(int socket, nb::bytes begins, uint32_t most_fields, uint32_t most_header, nb::bytes header,
                  uintptr_t into, uint64_t size) {
  const Expected expected{
      span_of(begins), most_fields, most_header, span_of(header), {reinterpret_cast<std::byte*>(into), size}};
  const ReceivedMessage taken = released([&] { return receive_message(socket, expected); });
  const std::span<const std::byte> text = taken.text;
  const bool read = taken.came != ReceivedMessage::Progress::head && taken.error == 0;
  const size_t fields = read ? taken.head.fields : 0;
  return nb::make_tuple(taken.error, bytes_of(taken.head.bytes()), bytes_of(text.first(fields)),
                        bytes_of(text.subspan(fields)), taken.came == ReceivedMessage::Progress::whole);
}

void bind_pieces(nb::module_& m) {
  nb::class_<Pieces>(m, "Pieces", "Buffers that make up one payload.")
      .def("told", &told, "(offset, address, size) of each.");
  m.def(
      "gather_pieces",
      [](nb::handle told, uintptr_t into, uint64_t capacity) {
        const std::vector<Piece> pieces = read_pieces(told, capacity);
        nb::gil_scoped_release release;
        gather(pieces, reinterpret_cast<std::byte*>(into));
      },
      "pieces"_a, "into"_a, "capacity"_a, "Copy (offset, address, size) pieces to their places at an address.");
  m.def(
      "send_pieces",
      [](int socket, nb::bytes prefix, nb::handle told, uint64_t payload, int passed) {
        const std::vector<Piece> pieces = read_pieces(told, payload);
        const auto first = span_of(prefix);
        nb::gil_scoped_release release;
        return send_pieces(socket, first, pieces, passed);
      },
      "socket"_a, "prefix"_a, "pieces"_a, "payload"_a, "passed"_a = -1,
      "Send a prefix and pieces over a blocking socket, with a file descriptor; return 0, or an errno.");
  m.def("receive_message", &receive, "socket"_a, "begins"_a, "most_fields"_a, "most_header"_a, "header"_a, "into"_a,
        "size"_a,
        "Receive the next message of a blocking socket. Return an errno (0: none, -1: closed), head, fields, header, "
        "and True if the payload is at `into`, because header and size are as expected. If the head is invalid, return "
        "nothing after the head.");
}

// TLS on a socket that Python owns (dataworker/transport/channel.py) and keeps open.
struct SecureSocket {
  SecureSocket(int socket, const std::string& folder, bool listens, const std::string& role, double within_s)
      : fd(socket), session(socket, {folder, listens ? TlsSide::listener : TlsSide::caller, role, within_s, true}) {}

  int fd;
  TlsSession session;
};

void bind_secure(nb::module_& m) {
  nb::class_<SecureSocket>(m, "SecureSocket")
      .def(nb::init<int, const std::string&, bool, const std::string&, double>(), "socket"_a, "folder"_a, "listens"_a,
           "role"_a, "within_s"_a, NoGil(),
           "The handshake. ServerUnreachable says why the other side is not one to speak to.")
      .def(
          "set_timeout", [](SecureSocket& self, double s) { self.session.set_timeouts(s, s); }, "seconds"_a,
          "0: forever.")
      .def(
          "receive",
          [](SecureSocket& self, std::span<uint8_t> into) {
            const Io io = self.session.receive(into.data(), into.size());
            if (io == Io::ok) return 0;
            return io == Io::closed || io == Io::torn ? -1 : io == Io::failed ? errno : ETIMEDOUT;
          },
          "into"_a, NoGil(), "Fill all of it; 0, -1 when the other side has closed, or an errno.")
      .def(
          "send_pieces",
          [](SecureSocket& self, nb::bytes prefix, nb::handle told, uint64_t payload) {
            const std::vector<Piece> pieces = read_pieces(told, payload);
            const auto first = span_of(prefix);
            nb::gil_scoped_release release;
            return send_pieces(Line(self.fd, &self.session), first, pieces, -1);
          },
          "prefix"_a, "pieces"_a, "payload"_a, "Send a prefix and pieces; return 0, or an errno.");
}

// Torch tensors without linking torch, through DLPack's exchange API (torch.Tensor.__dlpack_c_exchange_api__,
// torch 2.10 and later). dataworker/transport/layout.py has a Python path for older versions.
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
    throw BadInput("a table of DLPack ", table->major, "; wanted ", kMajor);
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

// Returns two byte strings: the dtypes and shapes, which are equal only for equal dtypes and shapes, and the addresses
// of the tensors. Returns None if a tensor is not dense CPU memory. The caller must check for lazy negation, which is
// not visible here.
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

// Positions of the non-empty tensors of a batch in its payload.
class Layout {
 public:
  // `told` has the index, offset and bytes of each tensor.
  explicit Layout(nb::list told) {
    for (nb::handle one : told) {
      const auto fields = nb::cast<nb::tuple>(one);
      places_.push_back(nb::cast<size_t>(fields[0]));
      pieces_.push_back({nb::cast<uint64_t>(fields[1]), nullptr, nb::cast<uint64_t>(fields[2])});
    }
  }

  // Returns None if a tensor has no memory, such as zeros that were never materialized.
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

struct TensorPart {
  uint64_t offset;
  nb::dlpack::dtype type;
  std::vector<int64_t> shape, strides;
};

// Memory shared by the tensors of one payload. The last tensor of the payload that is deleted frees the memory, in any
// thread.
struct Shelf {
  std::shared_ptr<const std::vector<TensorPart>> parts;
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

// Positions of tensors in a payload. The caller has checked the offsets against the payload's size.
class TensorPlan {
 public:
  // `like` has one tensor of each dtype. `told` has the index in `like`, the shape and the offset of each tensor.
  TensorPlan(nb::handle capsule, nb::list like, nb::list told, uint64_t size)
      : table_(table_of(capsule)), size_(size), parts_(std::make_shared<std::vector<TensorPart>>()) {
    for (nb::handle one : told) {
      const auto fields = nb::cast<nb::tuple>(one);
      View view = {};
      if (table_.view_of(like[nb::cast<size_t>(fields[0])].ptr(), &view) != 0) throw nb::python_error();
      TensorPart part{nb::cast<uint64_t>(fields[2]), view.dtype, nb::cast<std::vector<int64_t>>(fields[1]), {}};
      part.strides.resize(part.shape.size());
      uint64_t elements = 1;
      for (size_t axis = part.shape.size(); axis-- > 0;) {
        part.strides[axis] = static_cast<int64_t>(elements);
        if (part.shape[axis] < 0) throw BadInput("a tensor of a negative length");
        elements *= static_cast<uint64_t>(part.shape[axis]);
      }
      const uint64_t bytes = elements * (view.dtype.bits * view.dtype.lanes / 8);
      throw_if<BadInput>(part.offset > size || bytes > size - part.offset, "a tensor that ends after the ", size,
                         " bytes that there are");
      parts_->push_back(std::move(part));
    }
  }

  nb::list make(nb::handle payload) const {
    Py_buffer buffer;
    if (PyObject_GetBuffer(payload.ptr(), &buffer, PyBUF_WRITABLE) != 0) throw nb::python_error();
    auto* begin = static_cast<std::byte*>(buffer.buf);
    const auto there = static_cast<uint64_t>(buffer.len);
    PyBuffer_Release(&buffer);
    if (there < size_) throw BadInput("a payload of ", there, " bytes; wanted ", size_);
    nb::list made;
    if (parts_->empty()) return made;
    auto* shelf = new Shelf{parts_, payload.inc_ref().ptr(), std::vector<Managed>(parts_->size()), parts_->size()};
    for (size_t place = 0; place < parts_->size(); ++place) {
      Managed& one = shelf->managed[place];
      const TensorPart& part = (*parts_)[place];
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
      // Does not free the memory, because a leak is safer than freeing it twice.
      if (table_.tensor_of(&one, &tensor) != 0) throw nb::python_error();
      made.append(nb::steal(static_cast<PyObject*>(tensor)));
    }
    return made;
  }

 private:
  const Table& table_;
  uint64_t size_;
  std::shared_ptr<std::vector<TensorPart>> parts_;
};

void bind_tensors(nb::module_& m) {
  m.def("look_at_tensors", &look, "table"_a, "tensors"_a,
        "Dtypes and shapes as a key, and addresses (uint64 each); None if a tensor is not dense memory of the CPU.");
  nb::class_<Layout>(m, "Layout")
      .def(nb::init<nb::list>(), "told"_a, "Of tensors (place, offset, bytes) in a payload.")
      .def("at", &Layout::at, "addresses"_a, nb::sig("def at(self, addresses: bytes) -> Pieces | None"),
           "Return the positions of tensors at these addresses in the payload; None if a tensor has no memory.");
  nb::class_<TensorPlan>(m, "TensorPlan")
      .def(nb::init<nb::handle, nb::list, nb::list, uint64_t>(), "table"_a, "like"_a, "told"_a, "size"_a,
           "Plan for tensors (index of the dtype in `like`, shape, offset) in a payload of that size.")
      .def("make", &TensorPlan::make, "payload"_a, "Return tensors over a writable buffer, each with its own storage.");
}

}  // namespace

void bind_payload(nb::module_& m) {
  bind_pieces(m);
  bind_secure(m);
  bind_tensors(m);
}
