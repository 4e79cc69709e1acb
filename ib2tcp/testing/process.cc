#include "ib2tcp/testing/process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr int kSlots = 16;
Process* g_slots[kSlots];

// HostServices has no context argument: one set of functions per slot.
template <int N>
struct Fake {
  static Process& me() { return *g_slots[N]; }
  static void set_errno(int value) { me().set_errno(value); }
  static void* map(size_t bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    me().mapped_bytes_ += static_cast<long>(bytes);
    return p;
  }
  static void unmap(void* address, size_t bytes) {
    me().mapped_bytes_ -= static_cast<long>(bytes);
    ::munmap(address, bytes);
  }
  static void own_mapping(void*, size_t) {}
  static void disown_mapping(void*) {}
  static int own_descriptor(int fd) {
    if (fd < 0 || me().descriptors_short_) return -1;
    int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, 200);
    if (moved < 0) return -1;
    ::close(fd);
    std::lock_guard<std::mutex> guard(me().mutex_);
    me().descriptors_.insert(moved);
    return moved;
  }
  static void close_descriptor(int fd) {
    std::lock_guard<std::mutex> guard(me().mutex_);
    if (me().descriptors_.erase(fd) != 0) ::close(fd);
  }
  static int publish(const char* key, const void* value, size_t bytes) {
    std::lock_guard<std::mutex> guard(me().exchange_->mutex);
    me().exchange_->values[key] = std::string(static_cast<const char*>(value), bytes);
    return 0;
  }
  static int lookup(const char* key, void* value, size_t capacity, size_t* bytes) {
    ++me().lookups_;
    if (me().exchange_broken_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(me().exchange_takes_ms_));
      return EIO;
    }
    std::lock_guard<std::mutex> guard(me().exchange_->mutex);
    auto it = me().exchange_->values.find(key);
    if (it == me().exchange_->values.end()) return ENOENT;
    *bytes = it->second.size();
    std::memcpy(value, it->second.data(), std::min(capacity, it->second.size()));
    return 0;
  }
  static int claim(const char* key) {
    if (me().exchange_broken_) return EIO;
    std::lock_guard<std::mutex> guard(me().exchange_->mutex);
    return me().exchange_->values.emplace(key, "").second ? 0 : EEXIST;
  }
  static int job_key(uint8_t key[32]) {
    std::memset(key, me().options_.key_byte, 32);
    return 0;
  }
  static const char* config(const char* name) {
    if (std::strcmp(name, "SHADOWIB_IB2TCP_TRANSPORT") == 0) return me().options_.transport.c_str();
    auto it = me().options_.config.find(name);
    return it == me().options_.config.end() ? nullptr : it->second.c_str();
  }
  static void purged(std::uint64_t) {}
  static void unowned_descriptors(bool) {}  // nobody forks here
  static void needs_clc(std::uint32_t cluster, std::uint32_t sn) {
    std::lock_guard<std::mutex> guard(me().mutex_);
    me().wanted_clcs_.emplace_back(cluster, sn);
  }
  static void trace(const BorderEvent* event) {
    std::lock_guard<std::mutex> guard(me().mutex_);
    me().traced_.push_back(*event);
    me().traced_.back().vector = nullptr;
  }
  // The thread that answers has no lock of the backend.
  static void cluster_lost(std::uint32_t cluster) {
    std::lock_guard<std::mutex> guard(me().mutex_);
    ++me().lost_clusters_[cluster];
    me().unanswered_ |= 1u << cluster;
    me().ops().wake();
  }
  static void gate_moved(std::uint32_t cluster, std::uint64_t earliest, std::uint64_t awaits) {
    std::lock_guard<std::mutex> guard(me().mutex_);
    me().gates_[cluster] = {earliest, awaits};
  }
  static BorderLogEntry* entry_of(const std::shared_ptr<char[]>& entry) {
    return reinterpret_cast<BorderLogEntry*>(entry.get());
  }
  static BorderLogEntry* log_add(ibv_qp* qp, std::uint32_t number, std::uint32_t bytes) {
    std::lock_guard<std::mutex> guard(me().log_mutex_);
    FakeLog& log = me().fake_log_;
    const std::size_t whole = sizeof(BorderLogEntry) + bytes;
    if (log.bytes + whole > log.limit) return nullptr;
    log.bytes += whole;
    const auto& made = log.entries[qp->qp_num].emplace_back(new char[whole]());
    entry_of(made)->number = number;
    entry_of(made)->bytes = bytes;
    return entry_of(made);
  }
  static const BorderLogEntry* log_next(ibv_qp* qp, const BorderLogEntry* after) {
    std::lock_guard<std::mutex> guard(me().log_mutex_);
    bool is_next = after == nullptr;
    for (const auto& entry : me().fake_log_.entries[qp->qp_num]) {
      if (is_next) return entry_of(entry);
      is_next = entry_of(entry) == after;
    }
    return nullptr;
  }
  static void log_trim(ibv_qp* qp, std::uint32_t number) {
    std::lock_guard<std::mutex> guard(me().log_mutex_);
    std::erase_if(me().fake_log_.entries[qp->qp_num], [number](const auto& entry) {
      const bool goes = static_cast<std::int32_t>(entry_of(entry)->number - number) < 0;
      if (goes) me().fake_log_.bytes -= sizeof(BorderLogEntry) + entry_of(entry)->bytes;
      return goes;
    });
  }
  static void log_clear(ibv_qp* qp) {
    std::lock_guard<std::mutex> guard(me().log_mutex_);
    for (const auto& entry : me().fake_log_.entries[qp->qp_num])
      me().fake_log_.bytes -= sizeof(BorderLogEntry) + entry_of(entry)->bytes;
    me().fake_log_.entries.erase(qp->qp_num);
  }
  static void log(int level, const char* text) {
    if (std::getenv("IB2TCP_TEST_LOG") != nullptr)
      std::fprintf(stderr, "[%d.%d] %9.3f %d %s\n", ::getpid(), N, static_cast<double>(monotonic_ns()) / 1e9, level,
                   text);
    std::lock_guard<std::mutex> guard(me().mutex_);
    me().log_ += std::string(text) + "\n";
  }
  // All processes of a test share one, beside the test itself.
  static void* open_library(const char* name) { return ::dlopen(name, RTLD_NOW | RTLD_LOCAL); }
  static constexpr HostServices kServices = {.abi_version = kBackendAbiVersion,
                                             .set_errno = set_errno,
                                             .map = map,
                                             .unmap = unmap,
                                             .own_mapping = own_mapping,
                                             .disown_mapping = disown_mapping,
                                             .own_descriptor = own_descriptor,
                                             .close_descriptor = close_descriptor,
                                             .publish = publish,
                                             .lookup = lookup,
                                             .claim = claim,
                                             .job_key = job_key,
                                             .config = config,
                                             .log = log,
                                             .open_library = open_library,
                                             .purged = purged,
                                             .unowned_descriptors = unowned_descriptors,
                                             .needs_clc = needs_clc,
                                             .log_add = log_add,
                                             .log_next = log_next,
                                             .log_trim = log_trim,
                                             .log_clear = log_clear,
                                             .cluster_lost = cluster_lost,
                                             .gate_moved = gate_moved,
                                             .trace = trace};
};

template <int... N>
const HostServices* services_of(int slot, std::integer_sequence<int, N...>) {
  static const HostServices* const kAll[] = {&Fake<N>::kServices...};
  return kAll[slot];
}

// The loader tells libraries apart by inode: a copy has variables of its own. The file is there until the program
// ends, for the loader and for sanitizers that name functions.
class Copy {
 public:
  Copy() {
    int from = ::open(IB2TCP_LIBRARY, O_RDONLY | O_CLOEXEC);
    int to = ::mkostemps(path_, 3, O_CLOEXEC);
    struct stat st {};
    if (from < 0 || to < 0 || ::fstat(from, &st) != 0) std::abort();
    for (off_t left = st.st_size; left > 0;) {
      ssize_t n = ::sendfile(to, from, nullptr, static_cast<size_t>(left));
      if (n <= 0) std::abort();
      left -= n;
    }
    ::close(from);
    ::close(to);
  }
  ~Copy() { ::unlink(path_); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  void* load() const {
    void* library = ::dlopen(path_, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
    return library;
  }

 private:
  char path_[64] = "/tmp/ib2tcp-XXXXXX.so";
};

void* load_private_copy() {
  static std::vector<std::unique_ptr<Copy>> copies;
  copies.push_back(std::make_unique<Copy>());
  return copies.back()->load();
}

// A sanitizer would take the allocations of libstdc++ inside an unloaded library for leaks, and could not name its
// functions.
void unload(void* library) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  ::dlclose(library);
#else
  (void)library;
#endif
}

}  // namespace

int listen_on_loopback(std::uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 || ::listen(fd, 8) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    std::abort();
  *port = ntohs(address.sin_port);
  return fd;
}

std::string name_in_test(const std::string& transport) {
  std::string name = transport;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

Process::Process(std::shared_ptr<FakeExchange> exchange, const ProcessOptions& options)
    : exchange_(std::move(exchange)), options_(options) {
  for (slot_ = 0; slot_ < kSlots && g_slots[slot_] != nullptr;) ++slot_;
  if (slot_ == kSlots) std::abort();
  g_slots[slot_] = this;
  library_ = load_private_copy();
  if (library_ == nullptr) std::abort();
  auto entry = reinterpret_cast<BackendEntry>(::dlsym(library_, "shadowib_backend_entry"));
  services_ = *services_of(slot_, std::make_integer_sequence<int, kSlots>());
  if (!options.traces) services_.trace = nullptr;
  if (options.log_add != nullptr) services_.log_add = options.log_add;
  entry_result_ = entry(&services_, &ops_);
  if (entry_result_ == 0 && options.helper) start_helper();
}

void Process::start_helper() {
  stop_ = false;
  helper_ = std::thread([this] {
    while (!stop_) {
      ops_.progress(-1);
      const std::uint32_t asked = unanswered_.exchange(0);
      for (std::uint32_t cluster = 0; cluster < kMaxBackendClusters; ++cluster)
        if ((asked >> cluster & 1) != 0) ops_.judge_cluster(cluster, others_fail_ ? 1 : 0);
    }
  });
}

void Process::stop_helper() {
  if (!helper_.joinable()) return;
  stop_ = true;
  ops_.wake();
  helper_.join();
}

void Process::kill() {
  stop_helper();
  dead_ = true;
  std::lock_guard<std::mutex> guard(mutex_);
  for (int fd : descriptors_) ::close(fd);
  descriptors_.clear();
}

Process::~Process() {
  kill();
  // The library is abandoned, as at a restart: nothing of it may run again.
  unload(library_);
  g_slots[slot_] = nullptr;
}

}  // namespace shadowib::ib2tcp::testing
