// Events: who hears of them, and telling them. Without a launcher ranks tell each other (events.h).
#include "hooks/launcher/events.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/pmix_library.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/requests.h"
#include "hooks/threads/stop.h"

namespace shadowib {
namespace {

using Kind = LauncherRequest::Kind;

// What is done already, and is told by the callback, if there is one.
pmix_status_t done(const char* name, pmix_op_cbfunc_t callback, void* data) {
  if (callback != nullptr)
    list_request(make_request(Kind::kOperation, name, reinterpret_cast<void*>(callback), data));
  return PMIX_SUCCESS;
}

}  // namespace
}  // namespace shadowib

using namespace shadowib;

extern "C" {

PMIX_EXPORT pmix_status_t PMIx_Register_event_handler(pmix_status_t codes[], size_t ncodes, pmix_info_t info[],
                                                      size_t ninfo, pmix_notification_fn_t handler,
                                                      pmix_hdlr_reg_cbfunc_t callback, void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  constexpr char kName[] = "PMIx_Register_event_handler";
  LauncherCall call(kName);
  const auto forward = [&](pmix_hdlr_reg_cbfunc_t function, void* request) {
    return library->Register_event_handler(codes, ncodes, info, ninfo, handler, function, request);
  };
  if (call.nested()) return forward(callback, data);
  std::size_t number = 0;
  if (launcher_rank().gone.load()) {
    const pmix_status_t status = add_event_handler(codes, ncodes, info, ninfo, handler, &number);
    if (status != PMIX_SUCCESS) return status;
    if (callback == nullptr) return static_cast<pmix_status_t>(number);
  } else if (callback == nullptr) {
    return forward(nullptr, data);
  }
  LauncherRequest* const r = make_request(Kind::kRegistration, kName, reinterpret_cast<void*>(callback), data);
  r->number = number;
  return track_request(r, [&](void* request) { return forward(on_registration, request); });
}

// The library needs no launcher for its own: it forgets them, and says so to whoever may be there.
PMIX_EXPORT pmix_status_t PMIx_Deregister_event_handler(size_t number, pmix_op_cbfunc_t callback, void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  constexpr char kName[] = "PMIx_Deregister_event_handler";
  LauncherCall call(kName);
  if (!call.nested() && is_own_handler(number)) {
    remove_event_handler(number);
    return done(kName, callback, data);
  }
  if (call.nested() || callback == nullptr || launcher_rank().gone.load())
    return library->Deregister_event_handler(number, callback, data);
  LauncherRequest* const r = make_request(Kind::kOperation, kName, reinterpret_cast<void*>(callback), data);
  return track_request(
      r, [&](void* request) { return library->Deregister_event_handler(number, on_operation, request); });
}

PMIX_EXPORT pmix_status_t PMIx_Notify_event(pmix_status_t status, const pmix_proc_t* source, pmix_data_range_t range,
                                            const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t callback,
                                            void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  constexpr char kName[] = "PMIx_Notify_event";
  LauncherCall call(kName);
  const auto forward = [&](pmix_op_cbfunc_t function, void* request) {
    return library->Notify_event(status, source, range, info, ninfo, function, request);
  };
  if (call.nested()) return forward(callback, data);
  if (launcher_rank().gone.load()) {
    const pmix_status_t told = tell_event(status, source, range, info, ninfo);
    return told == PMIX_SUCCESS ? done(kName, callback, data) : told;
  }
  if (callback == nullptr) return forward(nullptr, data);
  LauncherRequest* const r = make_request(Kind::kOperation, kName, reinterpret_cast<void*>(callback), data);
  return track_request(r, [&](void* request) { return forward(on_operation, request); });
}
}
