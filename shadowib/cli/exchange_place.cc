#include "shadowib/cli/exchange_place.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "shadowib/cli/launched_exchange.h"
#include "shadowib/exchange/redis_connection.h"
#include "shadowib/exchange/redis_place.h"

namespace shadowib::cli {
namespace {

constexpr int kTryMs = 5000;

// Of one that speaks Redis' protocol, a pmix: that has been found among them.
bool is_server(const std::string& uri) { return is_redis_uri(uri) || uri.starts_with("pmix://"); }

bool is_number(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

Status addresses_of(const std::string& host, std::vector<std::string>* addresses) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); rc != 0)
    return Status::of(Code::kNotFound, 0, "the exchange's host '%.100s' is unknown here (%.80s); name its address",
                      host.c_str(), ::gai_strerror(rc));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    char text[64];  // without a name a scope would have: a link-local address is another machine's elsewhere
    const void* bytes = at->ai_family == AF_INET
                            ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(at->ai_addr)->sin_addr)
                            : &reinterpret_cast<sockaddr_in6*>(at->ai_addr)->sin6_addr;
    if (::inet_ntop(at->ai_family, bytes, text, sizeof(text)) != nullptr) addresses->push_back(text);
  }
  return {};
}

// The first that answers; also one that does not let us in, since the others would not either.
Status resolve_host(RedisPlace* place) {
  if (place->host == "localhost" || is_number(place->host)) return {};
  std::vector<std::string> addresses;
  SHADOWIB_TRY(addresses_of(place->host, &addresses));
  if (place->has_tls() && place->tls.server_name.empty()) place->tls.server_name = place->host;
  Status status = Status::of(Code::kNotFound, 0, "the exchange's host '%.100s' has no address", place->host.c_str());
  for (const std::string& address : addresses) {
    std::unique_ptr<RedisConnection> tried;
    place->host = address;
    status = RedisConnection::open(*place, kTryMs, &tried);
    if (status.code() != Code::kIo) return {};  // whoever opens the exchange is told the same
  }
  return status;
}

Status keep_password(const std::string& password, const std::string& path) {
  std::string there;
  if (read_file(path, &there).ok() && there == password + "\n") return {};
  const std::string temporary = path + ".new-" + random_hex(8);
  SHADOWIB_TRY(write_new_file(temporary, password + "\n"));
  if (::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int err = errno;
  ::unlink(temporary.c_str());
  return file_error(err, "write", path);
}

// The URI's goes before the variable's.
Status parse_with_password(const std::string& uri, RedisPlace* place) {
  SHADOWIB_TRY(parse_redis_uri(uri, place));
  if (place->is_redis() && place->password.empty() && place->password_file.empty()) {
    const char* password = std::getenv("SHADOWIB_REDIS_PASSWORD");
    if (password != nullptr) place->password = password;
  }
  if (place->password.find('\n') != std::string::npos)
    return Status(Code::kUsage, EINVAL, "the exchange's password has more than one line");
  return {};
}

}  // namespace

Status settle_exchange(const std::string& password_file, std::string* uri) {
  if (is_launched_exchange(*uri))
    SHADOWIB_TRY(find_launched_exchange(std::filesystem::path(password_file).parent_path(), uri));
  if (!is_server(*uri)) return {};
  RedisPlace place;
  SHADOWIB_TRY(parse_with_password(*uri, &place));
  if (!password_file.empty() && !place.password.empty()) {
    SHADOWIB_TRY(ensure_directory(std::filesystem::path(password_file).parent_path()));
    SHADOWIB_TRY(keep_password(place.password, password_file));
    place.password.clear();
    place.password_file = password_file;
  }
  if (place.is_redis()) SHADOWIB_TRY(resolve_host(&place));
  const std::string settled = place.uri();
  if (settled.size() >= sizeof(JobInfo::exchange))
    return Status::of(Code::kUsage, ENAMETOOLONG,
                      "exchange %.150s: with its options it is %zu bytes long, and may have %zu; use shorter paths",
                      place.shown().c_str(), settled.size(), sizeof(JobInfo::exchange) - 1);
  *uri = settled;
  return {};
}

std::string recorded_exchange(const std::string& uri) {
  RedisPlace place;
  if (!is_server(uri) || !parse_redis_uri(uri, &place).ok()) return uri;
  place.password.clear();
  return place.uri();
}

bool open_to_everybody(const std::string& uri) {
  RedisPlace place;
  if (!is_server(uri) || !parse_redis_uri(uri, &place).ok()) return false;
  return place.password.empty() && place.password_file.empty() && place.host != "localhost" && place.host != "::1" &&
         !place.host.starts_with("127.");
}

}  // namespace shadowib::cli
