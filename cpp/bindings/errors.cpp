// C++ exceptions become the classes of springtide/errors.py, found by name when first thrown.
#include "base/types.h"
#include "bindings/bindings.h"
#include "net/socket.h"

namespace {

void raise(const char* name, const char* message) {
  nb::object type = nb::module_::import_("springtide.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const springtide::NonFinite& e) {
          raise("NonFiniteGradient", e.what());
        } catch (const springtide::PartlyApplied& e) {
          raise("PartlyApplied", e.what());
        } catch (const springtide::BadInput& e) {
          raise("BadInput", e.what());
        } catch (const springtide::PortTaken& e) {
          raise("PortTaken", e.what());
        } catch (const springtide::GroupChanged& e) {
          raise("GroupChanged", e.what());
        } catch (const springtide::PeerLost& e) {
          raise("ServerUnreachable", e.what());
        } catch (const springtide::WrongOwner& e) {
          raise("WrongOwner", e.what());
        }
      },
      nullptr);
}
