#include "shadowib/exchange/redis_place.h"

#include <string_view>

#include "shadowib/exchange/exchange.h"

namespace shadowib {
namespace {

constexpr char kForm[] =
    "redis://[USER[:PASSWORD]@]HOST[:PORT][/DB][/PREFIX][?OPTION=VALUE&...] (shadowib-environment(7))";
constexpr std::string_view kSchemes[] = {"redis", "rediss", "pmix"};

struct Option {
  std::string_view name;
  std::string& (*value)(RedisPlace&);
  bool is_path, is_of_tls;
};
constexpr Option kOptions[] = {
    {"password-file", [](RedisPlace& p) -> std::string& { return p.password_file; }, true, false},
    {"ca", [](RedisPlace& p) -> std::string& { return p.tls.authorities; }, true, true},
    {"cert", [](RedisPlace& p) -> std::string& { return p.tls.certificate; }, true, true},
    {"key", [](RedisPlace& p) -> std::string& { return p.tls.key; }, true, true},
    {"server-name", [](RedisPlace& p) -> std::string& { return p.tls.server_name; }, false, true},
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool decode(std::string_view text, std::string* bytes) {
  bytes->clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      bytes->push_back(text[i]);
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) return false;
    bytes->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

// `escaped`: whether a character stands for more than itself.
template <typename Escaped>
std::string encode(const std::string& bytes, Escaped escaped) {
  std::string text;
  for (const char c : bytes) {
    const bool plain = !escaped(c);
    if (plain) {
      text.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    text += {'%', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
  }
  return text;
}

bool escaped_in_who(char c) {
  return !((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-' || c == '~');
}
// No more than has to be: members of older jobs take the path of a password as it stands.
bool escaped_in_option(char c) { return c == '%' || c == '&'; }

// A number of at most `limit`, all digits.
bool parse_whole(std::string_view text, int limit, int* number) {
  if (text.empty() || text.size() > 6) return false;
  *number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    *number = *number * 10 + (c - '0');
  }
  return *number <= limit;
}

Status wrong(const char* what) {
  return Status::of(Code::kUsage, EINVAL, "the exchange's URI %s; its form is %s", what, kForm);
}

Status parse_host(std::string_view text, RedisPlace* place) {
  std::string_view port;
  if (!text.empty() && text[0] == '[') {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return wrong("has a '[' without a ']'");
    place->host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const std::size_t colon = text.find(':');
    place->host = text.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
  }
  if (place->host.empty() || place->host.size() > 255) return wrong("names no host");
  int number = place->port;
  if (!port.empty() && (port[0] != ':' || !parse_whole(port.substr(1), 65535, &number) || number == 0))
    return wrong("has a port that is none (1 to 65535)");
  place->port = static_cast<std::uint16_t>(number);
  return {};
}

Status parse_path(std::string_view path, RedisPlace* place) {
  const std::size_t end = path.find('/');
  if (place->is_redis() && parse_whole(path.substr(0, end), 100000, &place->database))
    path = end == std::string_view::npos ? std::string_view() : path.substr(end + 1);
  if (path.empty()) return {};
  if (!Exchange::valid_key(path)) return wrong("has a prefix that is no key (A-Za-z0-9._- and '/')");
  place->prefix = path;
  return {};
}

Status parse_option(std::string_view text, RedisPlace* place) {
  const std::size_t equals = text.find('=');
  for (const Option& option : kOptions) {
    if (equals == std::string_view::npos || text.substr(0, equals) != option.name) continue;
    if (option.is_of_tls && !place->has_tls()) return wrong("has an option of TLS, which is that of rediss://");
    std::string& value = option.value(*place);
    if (!value.empty()) return wrong("has an option twice");
    if (!decode(text.substr(equals + 1), &value)) return wrong("has a '%' that no two hexadecimal digits follow");
    if (value.empty() || value.find('\0') != std::string::npos || (option.is_path && value[0] != '/'))
      return wrong(option.is_path ? "has an option that wants a file's path, from /"
                                  : "has an option without a value");
    return {};
  }
  return wrong("asks for what is not known after its '?'");
}

Status parse_options(std::string_view text, RedisPlace* place) {
  for (std::size_t end = 0; end != std::string_view::npos; text.remove_prefix(end + 1)) {
    end = text.find('&');
    SHADOWIB_TRY(parse_option(text.substr(0, end), place));
    if (end == std::string_view::npos) break;
  }
  if (place->tls.certificate.empty() != place->tls.key.empty())
    return wrong("names a certificate without its key, or a key without its certificate");
  return {};
}

}  // namespace

std::string RedisPlace::shown() const {
  RedisPlace bare = *this;
  bare.password.clear();
  bare.password_file.clear();
  bare.tls = {};
  return bare.uri();
}

std::string RedisPlace::uri() const {
  std::string text = scheme + "://" + encode(user, escaped_in_who);
  if (!password.empty()) text += ":" + encode(password, escaped_in_who);
  if (!user.empty() || !password.empty()) text += "@";
  text += host.find(':') == std::string::npos ? host : "[" + host + "]";
  text += ":" + std::to_string(port);
  if (is_redis()) text += "/" + std::to_string(database);
  text += "/" + prefix;
  char mark = '?';
  for (const Option& option : kOptions) {
    const std::string& value = option.value(const_cast<RedisPlace&>(*this));
    if (value.empty()) continue;
    text.append(1, mark).append(option.name).append("=").append(encode(value, escaped_in_option));
    mark = '&';
  }
  return text;
}

bool is_redis_uri(std::string_view uri) { return uri.starts_with("redis:") || uri.starts_with("rediss:"); }

Status parse_redis_uri(const std::string& uri, RedisPlace* place) {
  *place = {};
  std::string_view rest;
  for (const std::string_view scheme : kSchemes)
    if (uri.compare(0, scheme.size(), scheme) == 0 && uri.compare(scheme.size(), 3, "://") == 0) {
      place->scheme = scheme;
      rest = std::string_view(uri).substr(scheme.size() + 3);
    }
  if (rest.data() == nullptr) return wrong("does not begin with redis://");
  if (const std::size_t query = rest.find('?'); query != std::string_view::npos) {
    SHADOWIB_TRY(parse_options(rest.substr(query + 1), place));
    rest = rest.substr(0, query);
  }
  std::string_view path;
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = rest.substr(0, at);
    const std::size_t colon = who.find(':');
    if (!decode(who.substr(0, colon), &place->user) ||
        (colon != std::string_view::npos && !decode(who.substr(colon + 1), &place->password)))
      return wrong("has a '%' in its user or password that no two hexadecimal digits follow");
    rest = rest.substr(at + 1);
  }
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    path = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  SHADOWIB_TRY(parse_host(rest, place));
  return parse_path(path, place);
}

}  // namespace shadowib
