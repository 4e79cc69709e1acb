#include "shadowib/objects/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/base/malloc_arenas.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/objects/border.h"
#include "shadowib/objects/border_log.h"
#include "shadowib/objects/foreign_library.h"
#include "shadowib/objects/queue_pair.h"
#include "shadowib/objects/work_queue.h"

namespace shadowib {

BackendOps g_backend;

namespace {

void* g_handle = nullptr;
bool g_loaded = false;

// Sanitizers' run-time libraries exist once a process: an instrumented backend shares the program's namespace.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void* open_library(const char* path) { return ::dlopen(path, RTLD_NOW | RTLD_LOCAL); }
#else
void* open_library(const char* path) {
  return ::dlmopen(namespace_of_foreign_library(), path, RTLD_NOW | RTLD_LOCAL);
}
#endif

// --- what backends are offered; runs in the base namespace ---

void host_set_errno(int value) { errno = value; }

void* host_map(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (!own_mapping(p, bytes)) {
    ::syscall(SYS_munmap, p, bytes);
    return nullptr;
  }
  return p;
}
// By a raw call: a backend may hold a lock that the guard of munmap takes.
void host_unmap(void* address, size_t bytes) {
  disown_mapping(address);
  ::syscall(SYS_munmap, address, bytes);
}
void host_own_mapping(void* address, size_t bytes) {
  SHADOWIB_CHECK(own_mapping(address, bytes), "a backend holds more than %d mappings", kMaxOwnedMappings);
}

std::string job_key_name(const char* key) { return std::string(job_info().epoch) + "/" + key; }

int host_publish(const char* key, const void* value, size_t bytes) {
  if (!is_in_job()) return EIO;
  return Exchange::errno_of(job_exchange()->publish(job_key_name(key), {static_cast<const char*>(value), bytes}));
}
int host_lookup(const char* key, void* value, size_t capacity, size_t* bytes) {
  if (!is_in_job()) return EIO;
  return job_exchange()->copy(job_key_name(key), value, capacity, bytes);
}
int host_claim(const char* key) {
  if (!is_in_job()) return EIO;
  return Exchange::errno_of(job_exchange()->claim(job_key_name(key), "claimed"));
}
int host_job_key(uint8_t key[32]) { return Exchange::errno_of(read_job_key(key)); }

const char* host_config(const char* name) {
  // What a restart command was told is of this machine, the program's environment of the first one.
  const char* told = nullptr;
  if (::strcmp(name, "SHADOWIB_GUEST") == 0) return is_guest() ? "1" : nullptr;
  if (is_in_job() && ::strcmp(name, "SHADOWIB_IB2TCP_TRANSPORT") == 0) told = job_info().ib2tcp_transport;
  if (is_in_job() && ::strcmp(name, "SHADOWIB_IB2TCP_NETWORK") == 0) told = job_info().ib2tcp_network;
  if (is_in_job() && ::strcmp(name, "SHADOWIB_IBVERBS") == 0) told = job_info().verbs_library;
  return told != nullptr && *told != '\0' ? told : ::getenv(name);
}
int host_own_descriptor(int fd) {
  UnownedDescriptors unowned;
  return unowned.own(fd);
}
void host_unowned_descriptors(bool begin) {
  if (begin)
    begin_unowned_descriptors();
  else
    end_unowned_descriptors();
}
void host_log(int level, const char* text) { log_line(static_cast<LogLevel>(level), "%s", text); }

void* host_open_library(const char* name) {
  void* library = open_foreign_library(g_handle, name);
  if (library == nullptr) log_line(LogLevel::kError, "%s", ::dlerror());
  return library;
}

void host_purged(std::uint64_t wr_id) {
  if (guarded(Guard::kTakePurged)) reinterpret_cast<SlotHeader*>(wr_id)->release();
}

// The real queue pair's context is the shadow one.
ShadowQp& shadow_of(ibv_qp* real) { return *static_cast<ShadowQp*>(real->qp_context); }

constinit std::size_t g_log_bytes = 0;  // the bound of this process's logs, once there is a backend

BorderLogEntry* host_log_add(ibv_qp* real, uint32_t number, uint32_t bytes) {
  ShadowQp& qp = shadow_of(real);
  if (qp.border_log == nullptr) qp.border_log = std::make_shared<BorderLog>();
  BorderLogEntry* const entry = qp.border_log->add(number, bytes, g_log_bytes);
  if (border_log_fills()) host_log_fills();
  return entry;
}
const BorderLogEntry* host_log_next(ibv_qp* real, const BorderLogEntry* entry) {
  const auto& log = shadow_of(real).border_log;
  return log != nullptr ? log->next(entry) : nullptr;
}
void host_log_trim(ibv_qp* real, uint32_t number) {
  if (const auto& log = shadow_of(real).border_log; log != nullptr) log->trim(number);
}
void host_log_clear(ibv_qp* real) { shadow_of(real).border_log.reset(); }

// Const but for `trace`, which is set before a backend is loaded.
HostServices g_host = {.abi_version = kBackendAbiVersion,
                       .set_errno = host_set_errno,
                       .map = host_map,
                       .unmap = host_unmap,
                       .own_mapping = host_own_mapping,
                       .disown_mapping = disown_mapping,
                       .own_descriptor = host_own_descriptor,
                       .close_descriptor = close_owned_descriptor,
                       .publish = host_publish,
                       .lookup = host_lookup,
                       .claim = host_claim,
                       .job_key = host_job_key,
                       .config = host_config,
                       .log = host_log,
                       .open_library = host_open_library,
                       .purged = host_purged,
                       .unowned_descriptors = host_unowned_descriptors,
                       .needs_clc = host_needs_clc,
                       .log_add = host_log_add,
                       .log_next = host_log_next,
                       .log_trim = host_log_trim,
                       .log_clear = host_log_clear,
                       .cluster_lost = host_cluster_lost,
                       .gate_moved = host_gate_moved};

}  // namespace

void trace_borders(void (*trace)(const BorderEvent*)) { g_host.trace = trace; }

namespace {

// The directory of libshadowib.so, symbolic links resolved: <lib>. Backends are in <lib>/shadowib/.
std::string library_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&library_directory), &info) == 0 || info.dli_fname == nullptr) return ".";
  char real[4096];
  const char* path = info.dli_fname;
  UnownedDescriptors unowned;
  int fd = ::open(path, O_PATH | O_CLOEXEC);
  if (fd >= 0) {
    char link[64];
    ::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = ::readlink(link, real, sizeof(real) - 1);
    raw_close(fd);
    if (n > 0) {
      real[n] = '\0';
      path = real;
    }
  }
  std::string text(path);
  std::size_t slash = text.rfind('/');
  return slash == std::string::npos ? "." : text.substr(0, slash);
}

void forget() {
  g_memory_watch.store(nullptr, std::memory_order_release);
  g_loaded = false;
  g_backend = {};
}

// kUsage: a process of a cluster cannot use it.
Status use(const BackendOps& ops) {
  g_backend = ops;
  g_loaded = true;
  g_memory_watch.store(ops.memory_changes, std::memory_order_release);
  const int rc = tell_loaded_backend();
  if (rc == 0) return {};
  forget();
  if (rc != EOPNOTSUPP)
    return Status::of(Code::kInternal, rc, "backend %s refuses the state of the cluster: %s", ops.name,
                      ::strerror(rc));
  return Status::of(
      Code::kUsage, rc,
      "backend %s has no borders between clusters; run members of a cluster with SHADOWIB_BACKEND=ib2tcp", ops.name);
}

Status load_library(const std::string& path) {
  void* handle = open_library(path.c_str());
  if (handle == nullptr)
    return Status::of(Code::kNotFound, 0, "cannot load backend %s: %s", path.c_str(), ::dlerror());
  auto entry = reinterpret_cast<BackendEntry>(::dlsym(handle, "shadowib_backend_entry"));
  if (entry == nullptr) {
    ::dlclose(handle);
    return Status::of(Code::kUsage, 0, "%s is not a shadowib backend: it does not export shadowib_backend_entry",
                      path.c_str());
  }
  BackendOps ops{};
  g_handle = handle;
  g_log_bytes = parse_log_bytes(host_config("SHADOWIB_LOG_BYTES"));
  int rc = entry(&g_host, &ops);
  if (rc == 0 && ops.abi_version != kBackendAbiVersion) rc = EPROTO;
  if (rc != 0) {
    ::dlclose(handle);
    g_handle = nullptr;
    return Status::of(rc == EPROTO ? Code::kVersion : Code::kInternal, rc, "backend %s refuses to start: %s",
                      path.c_str(), ::strerror(rc));
  }
  return use(ops);
}

}  // namespace

bool backend_loaded() { return g_loaded; }
bool border_log_fills() { return g_log_bytes != 0 && BorderLog::bytes_in_use() >= g_log_bytes / 4 * 3; }

namespace {

// "4: RNIC", an adapter for iWARP, whose queue pairs only the kernel's connection manager connects.
bool is_iwarp(int adapters, const char* name) {
  char path[300];
  std::snprintf(path, sizeof(path), "%s/node_type", name);
  UnownedDescriptors unowned;
  const int fd = ::openat(adapters, path, O_RDONLY | O_CLOEXEC);
  char type = 0;
  const bool told = fd >= 0 && ::syscall(SYS_read, fd, &type, 1) == 1;
  if (fd >= 0) raw_close(fd);
  return told && type == '4';
}

}  // namespace

bool machine_has_rdma_device() {
  char name[1][IBV_SYSFS_NAME_MAX];
  return list_rdma_devices(name, 1) > 0;
}

int list_rdma_devices(char (*names)[IBV_SYSFS_NAME_MAX], int capacity) {
  UnownedDescriptors unowned;
  int fd = ::open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return 0;
  alignas(8) char entries[4096];  // readdir would take the program's heap
  int count = 0;
  for (long n; count < capacity && (n = ::syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0;)
    for (long at = 0; at < n && count < capacity;) {
      const auto* record_length = reinterpret_cast<unsigned short*>(entries + at + 16);
      const char* const name = entries + at + 19;
      const std::size_t length = ::strlen(name);
      if (*name != '.' && length < IBV_SYSFS_NAME_MAX && !is_iwarp(fd, name))
        ::memcpy(names[count++], name, length + 1);
      at += *record_length;
    }
  raw_close(fd);
  return count;
}

void forget_backend_after_fork() {
  abandon_foreign_descriptors();
  forget_border_after_fork();
  forget();
}

Status load_backend(const char* choice) {
  if (g_loaded) return {};
  // An abandoned copy: of the image, or from before a fork.
  if (g_handle != nullptr && !close_verbs_backend(g_handle)) ::dlclose(g_handle);
  g_handle = nullptr;
  note_malloc_arena();
  std::string name = choice != nullptr && *choice != '\0' ? choice : "auto";
  if (name == "auto") name = machine_has_rdma_device() ? "verbs" : "ib2tcp";
  if (name == "verbs") {
    BackendOps ops{};
    SHADOWIB_TRY(load_verbs_backend(&g_host, &ops, &g_handle));
    return use(ops);
  }
  if (name[0] == '/') return load_library(name);
  if (name == "ib2tcp" || name == "null")
    return load_library(library_directory() + "/shadowib/libshadowib-" + name + ".so");
  return Status::of(Code::kUsage, 0, "unknown backend '%s': use auto, verbs, ib2tcp or the path of a backend library",
                    name.c_str());
}

Status reload_backend(const char* choice) {
  forget_border_backend();
  forget();
  abandon_foreign_descriptors();
  return load_backend(choice);
}

}  // namespace shadowib
