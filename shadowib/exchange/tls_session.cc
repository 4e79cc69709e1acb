#include "shadowib/exchange/tls_session.h"

#include <arpa/inet.h>
#include <mbedtls/error.h>
#include <mbedtls/net_sockets.h>
#include <mbedtls/pem.h>
#include <mbedtls/ssl.h>
#include <mbedtls/x509_crt.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

#include "shadowib/base/arena.h"
#include "shadowib/base/secret_scope.h"
#include "shadowib/exchange/raw_files.h"
#include "shadowib/exchange/tls_platform.h"

namespace shadowib {
namespace {

constexpr char kSystemsAuthorities[] = "/etc/ssl/certs/ca-certificates.crt";
constexpr unsigned char kAddressTag = MBEDTLS_ASN1_CONTEXT_SPECIFIC | 7;  // RFC 5280's iPAddress

// With forward secrecy, and whole records checked: TLS 1.3 has no others either.
constexpr int kCipherSuites[] = {MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                                 MBEDTLS_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
                                 MBEDTLS_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                                 MBEDTLS_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
                                 MBEDTLS_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                                 MBEDTLS_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                                 0};

// Those that are agreed upon, cheapest first, and the last for certificates' keys alone: mbed TLS would begin with
// the largest, which costs it a hundred times as much.
constexpr mbedtls_ecp_group_id kCurves[] = {MBEDTLS_ECP_DP_SECP256R1, MBEDTLS_ECP_DP_CURVE25519,
                                            MBEDTLS_ECP_DP_SECP384R1, MBEDTLS_ECP_DP_SECP521R1, MBEDTLS_ECP_DP_NONE};

constexpr int kSocketFailed = MBEDTLS_ERR_NET_RECV_FAILED;  // whose errno is noted

// Of one call of ours. A handshake makes some dozens of them, if the server wants no more than that.
constexpr int kMostReceives = 1000;

// The bytes of a numeric address; 0: a name.
std::size_t address_of(const std::string& name, unsigned char (&bytes)[16]) {
  if (::inet_pton(AF_INET, name.c_str(), bytes) == 1) return 4;
  return ::inet_pton(AF_INET6, name.c_str(), bytes) == 1 ? 16 : 0;
}

// A code of mbed TLS is the sum of a module's and a lower module's.
bool is_of_memory(int code) {
  constexpr int kHigh[] = {MBEDTLS_ERR_SSL_ALLOC_FAILED,   MBEDTLS_ERR_X509_ALLOC_FAILED, MBEDTLS_ERR_PK_ALLOC_FAILED,
                           MBEDTLS_ERR_PEM_ALLOC_FAILED,   MBEDTLS_ERR_ECP_ALLOC_FAILED,  MBEDTLS_ERR_MD_ALLOC_FAILED,
                           MBEDTLS_ERR_CIPHER_ALLOC_FAILED};
  constexpr int kLow[] = {MBEDTLS_ERR_MPI_ALLOC_FAILED, MBEDTLS_ERR_ASN1_ALLOC_FAILED};
  if (code >= 0) return false;
  const int low = -(-code & 0x7f), high = code - low;
  return std::find(std::begin(kHigh), std::end(kHigh), high) != std::end(kHigh) ||
         std::find(std::begin(kLow), std::end(kLow), low) != std::end(kLow);
}

Status no_memory(const std::string& shown) {
  return Status::of(Code::kIo, ENOMEM, "exchange %.150s: no memory for TLS", shown.c_str());
}

struct Trouble {
  int bits;
  const char* text;
};
constexpr Trouble kOfCertificates[] = {
    {MBEDTLS_X509_BADCERT_EXPIRED, "it has expired; is the clock here right?"},
    {MBEDTLS_X509_BADCERT_FUTURE, "it is not valid yet; is the clock here right?"},
    {MBEDTLS_X509_BADCERT_REVOKED, "it has been revoked"},
    {MBEDTLS_X509_BADCERT_NOT_TRUSTED, "nobody who is believed has signed it; name its authority by ?ca=FILE"},
    {MBEDTLS_X509_BADCERT_CN_MISMATCH, "it is for another name; name the server as it does, by ?server-name=NAME"},
    {MBEDTLS_X509_BADCERT_BAD_MD | MBEDTLS_X509_BADCERT_BAD_PK | MBEDTLS_X509_BADCERT_BAD_KEY,
     "its key or signature is of a weak or unknown kind"},
    {MBEDTLS_X509_BADCERT_KEY_USAGE | MBEDTLS_X509_BADCERT_EXT_KEY_USAGE | MBEDTLS_X509_BADCERT_NS_CERT_TYPE,
     "it is not for servers"},
};

const char* of_alert(int alert) {
  switch (alert) {
    case MBEDTLS_SSL_ALERT_MSG_PROTOCOL_VERSION:
      return "it speaks no TLS 1.2, which it has to here";
    case MBEDTLS_SSL_ALERT_MSG_HANDSHAKE_FAILURE:
      return "it wants a certificate of ours (?cert=FILE&key=FILE), or has none of our ciphers";
    case MBEDTLS_SSL_ALERT_MSG_NO_CERT:
      return "it wants a certificate of ours: ?cert=FILE&key=FILE";
    case MBEDTLS_SSL_ALERT_MSG_BAD_CERT:
    case MBEDTLS_SSL_ALERT_MSG_UNSUPPORTED_CERT:
    case MBEDTLS_SSL_ALERT_MSG_CERT_REVOKED:
    case MBEDTLS_SSL_ALERT_MSG_CERT_EXPIRED:
    case MBEDTLS_SSL_ALERT_MSG_CERT_UNKNOWN:
    case MBEDTLS_SSL_ALERT_MSG_UNKNOWN_CA:
      return "it does not believe our certificate (?cert=FILE)";
    default:
      return "it refuses us";
  }
}

}  // namespace

struct TlsSession::State {
  mbedtls_ssl_context ssl;
  mbedtls_ssl_config config;
  mbedtls_x509_crt authorities, certificate;
  mbedtls_pk_context key;
  int socket;
  int err = 0;     // of the socket's last call
  int alert = -1;  // that the server has ended the handshake by
  bool secured = false;
  int receives = 0;  // since we were called

  explicit State(int fd) : socket(fd) {
    mbedtls_ssl_init(&ssl);
    mbedtls_ssl_config_init(&config);
    mbedtls_x509_crt_init(&authorities);
    mbedtls_x509_crt_init(&certificate);
    mbedtls_pk_init(&key);
  }
  ~State() {
    mbedtls_ssl_free(&ssl);
    mbedtls_ssl_config_free(&config);
    mbedtls_x509_crt_free(&authorities);
    mbedtls_x509_crt_free(&certificate);
    mbedtls_pk_free(&key);
  }

  int moved(long bytes, int again) {
    if (bytes >= 0) return static_cast<int>(bytes);
    err = errno;
    return err == EAGAIN || err == EINTR ? again : kSocketFailed;
  }
  // What a server has to say it says before it hangs up, and we may still be sending then.
  void find_alert(int code) {
    const int saved = errno;
    unsigned char record[7];
    if (code == MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE && ssl.in_msg != nullptr)
      alert = ssl.in_msg[1];
    else if (code == kSocketFailed &&
             ::syscall(SYS_recvfrom, socket, record, sizeof(record), 0, nullptr, nullptr) == sizeof(record) &&
             record[0] == MBEDTLS_SSL_MSG_ALERT && record[5] == MBEDTLS_SSL_ALERT_LEVEL_FATAL)
      alert = record[6];
    errno = alert >= 0 ? EPROTO : saved;
  }
  static int send(void* state, const unsigned char* bytes, std::size_t count) {
    auto* s = static_cast<State*>(state);
    return s->moved(::syscall(SYS_sendto, s->socket, bytes, count, MSG_NOSIGNAL, nullptr, 0),
                    MBEDTLS_ERR_SSL_WANT_WRITE);
  }
  // mbed TLS skips what it takes for noise, warning alerts above all, for as long as there is more of it.
  static int receive(void* state, unsigned char* to, std::size_t count) {
    auto* s = static_cast<State*>(state);
    if (++s->receives > kMostReceives) return MBEDTLS_ERR_SSL_WANT_READ;
    return s->moved(::syscall(SYS_recvfrom, s->socket, to, count, 0, nullptr, nullptr), MBEDTLS_ERR_SSL_WANT_READ);
  }
};

TlsSession::TlsSession(const std::string& shown, State* state)
    : shown_(shown), state_(state), forgotten_(arena_secrets_forgotten()) {}

TlsSession::~TlsSession() {
  if (gone()) return;
  state_->~State();
  arena_free_secret(state_);
}

bool TlsSession::gone() const { return forgotten_ != arena_secrets_forgotten(); }

int TlsSession::lost() {
  errno = ECONNRESET;
  return -1;
}

Status TlsSession::begin(const TlsPlace& place, const std::string& shown, int socket,
                         std::unique_ptr<TlsSession>* session) {
  tls_note_processor();
  const SecretScope scope;
  void* memory = arena_allocate_secret(sizeof(State));
  if (memory == nullptr) return no_memory(shown);
  std::unique_ptr<TlsSession> made(new TlsSession(shown, new (memory) State(socket)));
  SHADOWIB_TRY(made->read_files(place));
  made->server_name_ = place.server_name;
  State& s = *made->state_;
  int rc = mbedtls_ssl_config_defaults(&s.config, MBEDTLS_SSL_IS_CLIENT, MBEDTLS_SSL_TRANSPORT_STREAM,
                                       MBEDTLS_SSL_PRESET_DEFAULT);
  if (rc == 0) {
    mbedtls_ssl_conf_min_version(&s.config, MBEDTLS_SSL_MAJOR_VERSION_3, MBEDTLS_SSL_MINOR_VERSION_3);
    mbedtls_ssl_conf_ciphersuites(&s.config, kCipherSuites);
    mbedtls_ssl_conf_curves(&s.config, kCurves);
    mbedtls_ssl_conf_session_tickets(&s.config, MBEDTLS_SSL_SESSION_TICKETS_DISABLED);
    mbedtls_ssl_conf_authmode(&s.config, MBEDTLS_SSL_VERIFY_REQUIRED);
    mbedtls_ssl_conf_ca_chain(&s.config, &s.authorities, nullptr);
    mbedtls_ssl_conf_rng(&s.config, tls_random, nullptr);
    if (!place.certificate.empty()) rc = mbedtls_ssl_conf_own_cert(&s.config, &s.certificate, &s.key);
  }
  if (rc == 0) rc = mbedtls_ssl_setup(&s.ssl, &s.config);
  // An address is no DNS name: mbed TLS does not compare it (names_address does), and it is not sent (RFC 6066).
  unsigned char address[16];
  const char* name = address_of(place.server_name, address) == 0 ? place.server_name.c_str() : nullptr;
  if (name != nullptr && place.server_name.size() > MBEDTLS_SSL_MAX_HOST_NAME_LEN)
    return Status::of(Code::kUsage, ENAMETOOLONG,
                      "exchange %.100s: the server's name (?server-name=NAME) has more than %d bytes: '%.80s...'",
                      shown.c_str(), MBEDTLS_SSL_MAX_HOST_NAME_LEN, name);
  if (rc == 0) rc = mbedtls_ssl_set_hostname(&s.ssl, name);
  if (is_of_memory(rc)) return no_memory(shown);
  if (rc != 0) {
    char text[128];
    mbedtls_strerror(rc, text, sizeof(text));
    return Status::of(Code::kIo, EIO, "exchange %.150s: TLS cannot be begun (%.100s)", shown.c_str(), text);
  }
  mbedtls_ssl_set_bio(&s.ssl, &s, State::send, State::receive, nullptr);
  *session = std::move(made);
  return {};
}

Status TlsSession::read_files(const TlsPlace& place) {
  const std::string authorities = place.authorities.empty() ? kSystemsAuthorities : place.authorities;
  struct Wanted {
    const std::string& path;
    const char *option, *what;
    mbedtls_x509_crt* certificates;
  };
  const Wanted wanted[] = {{authorities, "ca", "certificates of authorities", &state_->authorities},
                           {place.certificate, "cert", "a certificate", &state_->certificate},
                           {place.key, "key", "a key without a password", nullptr}};
  for (const Wanted& w : wanted) {
    if (w.path.empty()) continue;
    SecretFile file;
    const int err = file.read(w.path);
    if (err == ENOMEM) return no_memory(shown_);
    if (err != 0)
      return Status::of(Code::kPermission, err, "exchange %.100s: %s cannot be read from %.200s (?%s=FILE): %s",
                        shown_.c_str(), w.what, w.path.c_str(), w.option, error_text(err));
    const int rc = w.certificates != nullptr
                       ? mbedtls_x509_crt_parse(w.certificates, file.bytes(), file.size())
                       : mbedtls_pk_parse_key(&state_->key, file.bytes(), file.size(), nullptr, 0);
    if (is_of_memory(rc)) return no_memory(shown_);
    // Of many authorities some may be of kinds that are not known here.
    const bool some = w.certificates == &state_->authorities && rc > 0 && w.certificates->raw.p != nullptr;
    if (rc != 0 && !some)
      return Status::of(Code::kUsage, EINVAL, "exchange %.100s: %.200s (?%s=FILE) does not hold %s, in PEM's form",
                        shown_.c_str(), w.path.c_str(), w.option, w.what);
  }
  if (!place.certificate.empty() && mbedtls_pk_check_pair(&state_->certificate.pk, &state_->key) != 0)
    return Status::of(Code::kUsage, EINVAL, "exchange %.80s: %.110s is not the key of the certificate in %.110s",
                      shown_.c_str(), place.key.c_str(), place.certificate.c_str());
  return {};
}

// Whether the server's certificate is for the address that it was asked for by.
bool TlsSession::names_address() const {
  unsigned char address[16];
  const std::size_t bytes = address_of(server_name_, address);
  if (bytes == 0) return true;
  const mbedtls_x509_crt* peer = mbedtls_ssl_get_peer_cert(&state_->ssl);
  if (peer == nullptr) return false;
  for (const mbedtls_x509_sequence* name = &peer->subject_alt_names; name != nullptr; name = name->next)
    if (name->buf.tag == kAddressTag && name->buf.len == bytes && std::memcmp(name->buf.p, address, bytes) == 0)
      return true;
  return false;
}

long TlsSession::result(int code) {
  if (code >= 0) return code;
  code_ = code;
  waits_for_ = code == MBEDTLS_ERR_SSL_WANT_WRITE ? POLLOUT : POLLIN;
  if (code == MBEDTLS_ERR_SSL_WANT_READ || code == MBEDTLS_ERR_SSL_WANT_WRITE)
    errno = EAGAIN;
  else if (code == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY || code == MBEDTLS_ERR_SSL_CONN_EOF)
    return 0;
  else
    errno = code == kSocketFailed ? state_->err : EPROTO;
  return -1;
}

int TlsSession::shake_hands() {
  if (gone()) return lost();
  const SecretScope scope;
  state_->receives = 0;
  const int code = mbedtls_ssl_handshake(&state_->ssl);
  if (code == 0 && !names_address()) {
    code_ = MBEDTLS_ERR_X509_CERT_VERIFY_FAILED;
    errno = EPROTO;
    return -1;
  }
  state_->secured = code == 0;
  if (code == 0) return 0;
  if (result(code) == 0) errno = ECONNRESET;
  if (errno != EAGAIN) state_->find_alert(code);
  return -1;
}

long TlsSession::send(std::string_view bytes) {
  if (gone()) return lost();
  const SecretScope scope;
  return result(mbedtls_ssl_write(&state_->ssl, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

long TlsSession::receive(void* to, std::size_t bytes) {
  if (gone()) return lost();
  const SecretScope scope;
  state_->receives = 0;
  return result(mbedtls_ssl_read(&state_->ssl, static_cast<unsigned char*>(to), bytes));
}

Status TlsSession::trouble() const {
  if (gone())
    return Status::of(Code::kIo, ECONNRESET, "exchange %.150s: the connection has ended with a restart",
                      shown_.c_str());
  if (is_of_memory(code_)) return no_memory(shown_);
  const mbedtls_ssl_context& ssl = state_->ssl;
  std::uint32_t flags = mbedtls_ssl_get_verify_result(&ssl);
  // A certificate of the right authority, which is not for servers, or of a curve that is not known here.
  const bool unfit = code_ == MBEDTLS_ERR_SSL_BAD_HS_CERTIFICATE && flags != 0 && flags != ~0u;
  if (code_ == MBEDTLS_ERR_X509_CERT_VERIFY_FAILED || unfit) {
    if (flags == 0) flags = MBEDTLS_X509_BADCERT_CN_MISMATCH;  // of an address
    const char* why = "it is not to be believed";
    for (const Trouble& known : kOfCertificates)
      if ((flags & static_cast<std::uint32_t>(known.bits)) != 0) {
        why = known.text;
        break;
      }
    return Status::of(Code::kPermission, EACCES, "exchange %.100s: the server's certificate, as one of '%.80s': %s",
                      shown_.c_str(), server_name_.c_str(), why);
  }
  if (state_->alert >= 0)
    return Status::of(Code::kPermission, EACCES, "exchange %.100s: the server ends the handshake (alert %d): %s",
                      shown_.c_str(), state_->alert, of_alert(state_->alert));
  char text[128];
  mbedtls_strerror(code_, text, sizeof(text));
  if (!state_->secured)
    return Status::of(Code::kIo, EPROTO,
                      "exchange %.100s: no TLS with what answers (%.100s); if it is a port without, then redis://",
                      shown_.c_str(), text);
  return Status::of(Code::kIo, EPROTO, "exchange %.100s: what arrives is not what the server has sent (%.100s)",
                    shown_.c_str(), text);
}

}  // namespace shadowib
