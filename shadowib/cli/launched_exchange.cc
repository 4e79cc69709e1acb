#include "shadowib/cli/launched_exchange.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "hooks/imager/descriptors/capture/launcher_process.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/in_child.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/exchange_server.h"
#include "shadowib/exchange/redis_connection.h"
#include "shadowib/exchange/redis_place.h"

namespace shadowib::cli {
namespace {

constexpr char kVersion[] = "1";
constexpr int kWaitMs = 60000, kRankTryMs = 5000;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// True if all ranks run on this host, as far as the launcher tells.
bool one_host() {
  const std::string here = variable("OMPI_COMM_WORLD_LOCAL_SIZE");
  return !here.empty() && here == variable("OMPI_COMM_WORLD_SIZE");
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
    const void* bytes = &v6->sin6_addr;
    if (family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    char text[64];
    if (::inet_ntop(family, bytes, text, sizeof(text)) != nullptr) addresses.push_back(text);
  }
  if (addresses.empty()) addresses.push_back("127.0.0.1");
  return addresses;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A descriptor that is readable when the launcher has ended.
Status watch_launcher(const std::string& launch, int* fd) {
  const pid_t pid = descriptors::launcher_process(launch);
  *fd = pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
  if (*fd >= 0) return {};
  return Status(
      Code::kRefused, 0,
      "exchange pmix: the launcher is none of the processes that have started this one, so that nobody would "
      "tell the exchange's server of its end; name another with --exchange");
}

// It is nobody's child, and holds nothing of the rank's that somebody may wait for the end of.
void leave_rank(int launcher, ExchangeServer* server) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2}) ::dup2(null, fd);
  server->close_others(launcher);
  (void)!::chdir("/");
  ::prctl(PR_SET_NAME, "shadowib-exchng");
  for (const int sig : {SIGHUP, SIGINT, SIGPIPE}) ::signal(sig, SIG_IGN);
  // The rank's processor is for the rank.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof(all));
  ::sched_setaffinity(0, sizeof(all), &all);
}

// The server is the child of a child, which nobody waits for. It listens already: who comes early is heard later.
Status start_server(const std::string& launch, const std::string& path) {
  int launcher = -1;
  SHADOWIB_TRY(watch_launcher(launch, &launcher));
  std::unique_ptr<ExchangeServer> server;
  const bool loopback = one_host();
  SHADOWIB_TRY(ExchangeServer::open(loopback, &server));
  const ServerPlace place{server->port(), server->password(),
                          loopback ? std::vector<std::string>{"127.0.0.1"} : own_addresses()};
  const int rc = in_child([&] {
    ::setsid();
    const pid_t pid = ::fork();
    if (pid != 0) return pid < 0 ? errno : 0;
    leave_rank(launcher, server.get());
    server->serve(launcher);
    if (read_text(path) == place.text()) ::unlink(path.c_str());
    ::_exit(0);
  });
  ::close(launcher);
  if (rc != 0) return Status::of(Code::kIo, rc, "exchange pmix: no process for its server: %s", std::strerror(rc));
  const std::string temporary = path + ".new-" + random_hex(8);
  SHADOWIB_TRY(write_new_file(temporary, place.text()));
  if (::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int err = errno;
  ::unlink(temporary.c_str());
  return file_error(err, "write", path);
}

// Of the server that the file names, the first address that answers.
Status try_place(const std::string& path, RedisPlace* settled) {
  ServerPlace place;
  const std::string text = read_text(path);
  if (!ServerPlace::parse(text, &place))
    return Status::of(text.empty() ? Code::kNotFound : Code::kVersion, 0, "exchange pmix: %.200s %s", path.c_str(),
                      text.empty() ? "is not there" : "is another version's");
  settled->port = static_cast<std::uint16_t>(place.port);
  settled->password = place.password;
  Status status;
  for (const std::string& address : place.addresses) {
    settled->host = address;
    std::unique_ptr<RedisConnection> tried;
    status = RedisConnection::open(*settled, kRankTryMs, &tried);
    if (status.ok()) break;
  }
  return status;
}

Status await_place(const std::string& path, RedisPlace* settled) {
  const Deadline deadline = Deadline::in_ms(kWaitMs);
  // From 10 ms to 250 ms: a thousand ranks may wait for rank 0, by a file server.
  for (long interval_ms = 10;; interval_ms = std::min(interval_ms * 2, 250L)) {
    const Status status = try_place(path, settled);
    if (status.ok() || status.code() == Code::kVersion) return status;
    if (deadline.has_passed())
      return Status::of(Code::kTimeout, ETIMEDOUT,
                        "exchange pmix: rank 0 of the launch has started no server within %d s (%.150s); start all "
                        "ranks by shadowib, with the same --dir, --job and --exchange",
                        kWaitMs / 1000, status.text());
    const timespec interval{0, interval_ms * 1000000};
    ::nanosleep(&interval, nullptr);
  }
}

// A component of a path.
std::string as_file_name(std::string text) {
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
  return text.substr(0, 128);
}

}  // namespace

std::string ServerPlace::text() const {
  std::string text = std::string(kVersion) + " " + std::to_string(port) + " " + password;
  for (const std::string& address : addresses) text += " " + address;
  return text;
}

bool ServerPlace::parse(const std::string& text, ServerPlace* place) {
  *place = {};
  std::istringstream words(text);
  std::string version;
  words >> version >> place->port >> place->password;
  if (!words || version != kVersion || place->port < 1 || place->port > 65535) return false;
  for (std::string address; words >> address;) {
    in6_addr bytes;
    if (::inet_pton(AF_INET, address.c_str(), &bytes) != 1 && ::inet_pton(AF_INET6, address.c_str(), &bytes) != 1)
      return false;
    place->addresses.push_back(address);
  }
  return !place->addresses.empty();
}

bool is_launched() { return !variable("PMIX_NAMESPACE").empty() && !variable("PMIX_RANK").empty(); }

bool is_launched_exchange(const std::string& uri) { return uri.starts_with("pmix:") && !uri.starts_with("pmix://"); }

std::string unsettled_exchange(const std::string& uri) {
  RedisPlace place;
  if (!uri.starts_with("pmix://") || !parse_redis_uri(uri, &place).ok()) return uri;
  return "pmix:" + place.prefix;
}

Status find_launched_exchange(const std::string& directory, std::string* uri) {
  RedisPlace settled;
  settled.scheme = "pmix";
  if (const std::string prefix = uri->substr(5); !prefix.empty()) settled.prefix = prefix;
  if (!Exchange::valid_key(settled.prefix))
    return Status::of(Code::kUsage, EINVAL,
                      "exchange %.150s: its form is pmix: or pmix:PREFIX (A-Za-z0-9._- and '/')", uri->c_str());
  if (!is_launched())
    return Status(Code::kUsage, 0,
                  "exchange pmix: it is the launcher's, and no launcher that speaks PMIx has started this command: "
                  "mpirun -np N shadowib ... (a command for a job that runs leaves --exchange out); elsewhere name "
                  "another, --exchange dir:PATH or redis://HOST");
  if (directory.empty()) return Status(Code::kUsage, 0, "exchange pmix: it is of a job, and there is none here");
  SHADOWIB_TRY(ensure_directory(directory));
  const std::string launch = variable("PMIX_NAMESPACE"), path = directory + "/server-" + as_file_name(launch);
  // One that does not answer is another launch's of the same name, long gone.
  if (variable("PMIX_RANK") == "0" && !try_place(path, &settled).ok()) SHADOWIB_TRY(start_server(launch, path));
  SHADOWIB_TRY(await_place(path, &settled));
  *uri = settled.uri();
  return {};
}

}  // namespace shadowib::cli
