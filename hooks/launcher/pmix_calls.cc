// What a rank asks for itself: to begin and to end, and values.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/job/current_job.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/connection.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/meeting.h"
#include "hooks/launcher/membership.h"
#include "hooks/launcher/pmix_library.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/requests.h"
#include "hooks/launcher/session_directories.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

std::uint32_t size_of_namespace(const PmixLibrary& library, const pmix_proc_t& own) {
  pmix_proc_t all = own;
  all.rank = PMIX_RANK_WILDCARD;
  pmix_value_t* value = nullptr;
  std::uint32_t size = own.rank + 1;
  if (library.Get(&all, PMIX_JOB_SIZE, nullptr, 0, &value) == PMIX_SUCCESS && value != nullptr) {
    if (value->type == PMIX_UINT32) size = value->data.uint32;
    free_value(library, value);
  }
  return size;
}

// Where the launcher has directories for its ranks. Some tell by values, Open MPI 4 by the environment alone.
std::vector<std::string> session_roots(const PmixLibrary& library, const pmix_proc_t& own) {
  std::vector<std::string> roots;
  for (const char* key : {PMIX_NSDIR, PMIX_PROCDIR}) {  // PMIX_TMPDIR may be one where users have files, too
    pmix_proc_t whose = own;
    if (std::strcmp(key, PMIX_PROCDIR) != 0) whose.rank = PMIX_RANK_WILDCARD;
    pmix_value_t* value = nullptr;
    if (get_locally(library, &whose, key, nullptr, 0, &value) != PMIX_SUCCESS || value == nullptr) continue;
    if (value->type == PMIX_STRING && value->data.string != nullptr && is_session_directory(value->data.string))
      roots.emplace_back(value->data.string);
    free_value(library, value);
  }
  if (const char* root = std::getenv("PMIX_SERVER_TMPDIR"); root != nullptr && is_session_directory(root))
    roots.emplace_back(root);
  return roots;
}

// The first PMIx_Init has succeeded: a rank, and a member of the job from here on.
void begin(const PmixLibrary& library, const pmix_proc_t& own) {
  LauncherRank& r = launcher_rank();
  const std::uint32_t size = size_of_namespace(library, own);
  std::memcpy(r.name, own.nspace, sizeof(r.name));
  r.name[sizeof(r.name) - 1] = '\0';
  r.rank = own.rank;
  r.size = size;
  begin_meeting_if_spawned();
  const std::vector<std::string> roots = session_roots(library, own);
  {
    Inside inside;
    r.session_roots = roots;
    for (const std::string& root : roots) note_launcher_directory(root.c_str());
    note_launcher_connection();
    leave_out_listeners(own.nspace);
  }
  if (const int rc = start_answering(); rc != 0)
    log_line(LogLevel::kWarn, "cannot start the thread that answers for the launcher after a restart: %s",
             std::strerror(rc));
  join_as_rank();
}

int count_init(int change) {
  Inside inside;
  LauncherRank& r = launcher_rank();
  SpinGuard guard(r.lock);
  return r.inits += change;
}

void note_put(const char* key, const pmix_value_t& value) {
  Inside inside;
  LauncherRank& r = launcher_rank();
  StoredValue stored;
  const bool known = store_value(value, &stored);
  SpinGuard guard(r.lock);
  if (known)
    r.puts[key] = stored;
  else
    std::snprintf(r.unanswerable, sizeof(r.unanswerable), "it has put '%.80s', a value of type %u", key, value.type);
}

StoredValues note_commit() {
  LauncherRank& r = launcher_rank();
  SpinGuard guard(r.lock);
  r.committed = true;
  return r.committed_puts = r.puts;
}

pmix_status_t commit_to_board() {
  Inside inside;
  const LauncherRank& r = launcher_rank();
  const Status status = Board(job_exchange(), job_info().epoch, r.name).publish_puts(r.rank, note_commit());
  if (status.ok()) return PMIX_SUCCESS;
  log_line(LogLevel::kError, "rank %u cannot tell what it has put: %s", r.rank, status.text());
  return PMIX_ERR_COMM_FAILURE;
}

struct AwaitedValue : AwaitedAnswer {
  pmix_value_t* value = nullptr;
};

void take_value(pmix_status_t status, pmix_value_t* value, void* data) {
  auto* const awaited = static_cast<AwaitedValue*>(data);
  if (status == PMIX_SUCCESS && value != nullptr) {
    awaited->value = copy_value(*pmix_library(), *value);
    if (awaited->value == nullptr) status = PMIX_ERR_NOMEM;
  }
  awaited->finish(status);
}

LauncherRequest* new_get(const char* name, const pmix_proc_t* proc, const char* key, bool waits,
                         pmix_value_cbfunc_t callback, void* data) {
  Inside inside;
  LauncherRequest* const r = new_request(LauncherRequest::Kind::kGet, name, reinterpret_cast<void*>(callback), data);
  if (proc != nullptr) r->proc = *proc;
  if (key != nullptr) r->key = key;
  r->waits = waits;
  return r;
}

// Asks the launcher, or when there is none what others have told. The callback comes if this is PMIX_SUCCESS.
pmix_status_t ask(const PmixLibrary& library, const pmix_proc_t* proc, const char* key, const pmix_info_t* info,
                  std::size_t ninfo, LauncherRequest* r) {
  list_request(r);
  if (launcher_rank().gone.load()) return PMIX_SUCCESS;
  const pmix_status_t status = library.Get_nb(proc, key, info, ninfo, on_value, r);
  if (status != PMIX_SUCCESS) drop_request(r);
  return status;
}

// A value that is not here: of a rank that may not have told it yet.
pmix_status_t await_value(const PmixLibrary& library, const pmix_proc_t* proc, const char* key,
                          const pmix_info_t* info, std::size_t ninfo, pmix_value_t** value) {
  AwaitedValue awaited;
  pmix_status_t status = PMIX_ERR_NOT_FOUND;
  LauncherRequest* const r =
      new_get("PMIx_Get", proc, key, !is_asked_for(info, ninfo, PMIX_IMMEDIATE), take_value, &awaited);
  {
    LauncherCall call("PMIx_Get");
    status = ask(library, proc, key, info, ninfo, r);
  }
  if (status != PMIX_SUCCESS) return status;
  status = awaited.wait();
  *value = awaited.value;
  return status;
}

}  // namespace
}  // namespace shadowib

using namespace shadowib;

extern "C" {

PMIX_EXPORT pmix_status_t PMIx_Init(pmix_proc_t* proc, pmix_info_t info[], size_t ninfo) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Init");
  if (call.nested()) return library->Init(proc, info, ninfo);
  LauncherRank& r = launcher_rank();
  pmix_proc_t own{};
  if (r.gone.load()) {
    std::memcpy(own.nspace, r.name, sizeof(own.nspace));
    own.rank = r.rank;
  } else if (const pmix_status_t status = library->Init(&own, info, ninfo); status != PMIX_SUCCESS) {
    return status;
  }
  if (proc != nullptr) *proc = own;
  if (count_init(1) == 1 && !r.gone.load()) begin(*library, own);
  return PMIX_SUCCESS;
}

PMIX_EXPORT pmix_status_t PMIx_Finalize(const pmix_info_t info[], size_t ninfo) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Finalize");
  if (call.nested()) return library->Finalize(info, ninfo);
  const bool gone = launcher_rank().gone.load();
  const pmix_status_t status = gone ? PMIX_SUCCESS : library->Finalize(info, ninfo);
  if (count_init(-1) == 0) {
    forget_meetings();
    leave_as_rank();
  }
  return status;
}

PMIX_EXPORT pmix_status_t PMIx_Put(pmix_scope_t scope, const char key[], pmix_value_t* value) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Put");
  const pmix_status_t status = library->Put(scope, key, value);  // in this process's memory only
  if (!call.nested() && status == PMIX_SUCCESS && key != nullptr && value != nullptr) note_put(key, *value);
  return status;
}

PMIX_EXPORT pmix_status_t PMIx_Commit(void) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Commit");
  if (call.nested()) return library->Commit();
  if (launcher_rank().gone.load()) return commit_to_board();
  const pmix_status_t status = library->Commit();
  Inside inside;
  if (status == PMIX_SUCCESS) note_commit();
  return status;
}

PMIX_EXPORT pmix_status_t PMIx_Get(const pmix_proc_t* proc, const char key[], const pmix_info_t info[], size_t ninfo,
                                   pmix_value_t** value) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  {
    LauncherCall call("PMIx_Get");
    if (call.nested() || library->Value_xfer == nullptr) return library->Get(proc, key, info, ninfo, value);
    const pmix_status_t status = get_locally(*library, proc, key, info, ninfo, value);
    if (status == PMIX_SUCCESS || is_asked_for(info, ninfo, PMIX_OPTIONAL)) return status;
  }
  return await_value(*library, proc, key, info, ninfo, value);
}

PMIX_EXPORT pmix_status_t PMIx_Get_nb(const pmix_proc_t* proc, const char key[], const pmix_info_t info[],
                                      size_t ninfo, pmix_value_cbfunc_t callback, void* data) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Get_nb");
  if (call.nested() || callback == nullptr) return library->Get_nb(proc, key, info, ninfo, callback, data);
  const bool waits = !is_asked_for(info, ninfo, PMIX_IMMEDIATE) && !is_asked_for(info, ninfo, PMIX_OPTIONAL);
  LauncherRequest* const r = new_get("PMIx_Get_nb", proc, key, waits, callback, data);
  if (launcher_rank().gone.load() && get_locally(*library, proc, key, info, ninfo, &r->value) != PMIX_SUCCESS)
    r->value = nullptr;
  return ask(*library, proc, key, info, ninfo, r);
}

// In this process's memory only, by the library's thread.
PMIX_EXPORT pmix_status_t PMIx_Store_internal(const pmix_proc_t* proc, const char key[], pmix_value_t* value) {
  const PmixLibrary* library = pmix_library();
  if (library == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  LauncherCall call("PMIx_Store_internal");
  return library->Store_internal(proc, key, value);
}
}
