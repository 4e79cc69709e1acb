#include "shadowib/exchange/tests/babbling_server.h"

#include <gtest/gtest.h>
#include <mbedtls/ssl.h>
#include <mbedtls/x509_crt.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/tls_platform.h"

namespace shadowib {
namespace {

constexpr unsigned char kUserCanceled = 90;  // RFC 5246's: a warning

int send_to(void* client, const unsigned char* bytes, std::size_t count) {
  return static_cast<int>(::send(*static_cast<const int*>(client), bytes, count, MSG_NOSIGNAL));
}
int receive_from(void* client, unsigned char* to, std::size_t count) {
  return static_cast<int>(::recv(*static_cast<const int*>(client), to, count, 0));
}

std::int64_t end() { return monotonic_ns() + std::int64_t{BabblingServer::kLastsS} * 1000000000; }

void babble_outside(int client) {
  char hello[512];
  if (::recv(client, hello, sizeof(hello), 0) <= 0) return;
  std::string alerts;
  for (int i = 0; i < 500; ++i) alerts.append({0x15, 3, 3, 0, 2, 1, kUserCanceled});
  for (const std::int64_t deadline = end(); monotonic_ns() < deadline;)
    if (::send(client, alerts.data(), alerts.size(), MSG_NOSIGNAL) <= 0) return;
}

}  // namespace

BabblingServer::BabblingServer(std::string certificate, std::string key)
    : certificate_(std::move(certificate)), key_(std::move(key)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener_, 1), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { babble(); });
}

BabblingServer::~BabblingServer() {
  ::shutdown(listener_, SHUT_RDWR);  // if nobody has come
  thread_.join();
  ::close(listener_);
}

void BabblingServer::babble() const {
  const int client = ::accept(listener_, nullptr, nullptr);
  if (client < 0) return;
  if (certificate_.empty())
    babble_outside(client);
  else
    babble_inside(client);
  ::close(client);
}

void BabblingServer::babble_inside(int client) const {
  mbedtls_ssl_context ssl;
  mbedtls_ssl_config config;
  mbedtls_x509_crt certificate;
  mbedtls_pk_context key;
  mbedtls_ssl_init(&ssl);
  mbedtls_ssl_config_init(&config);
  mbedtls_x509_crt_init(&certificate);
  mbedtls_pk_init(&key);
  EXPECT_EQ(mbedtls_x509_crt_parse_file(&certificate, certificate_.c_str()), 0);
  EXPECT_EQ(mbedtls_pk_parse_keyfile(&key, key_.c_str(), nullptr), 0);
  EXPECT_EQ(mbedtls_ssl_config_defaults(&config, MBEDTLS_SSL_IS_SERVER, MBEDTLS_SSL_TRANSPORT_STREAM,
                                        MBEDTLS_SSL_PRESET_DEFAULT),
            0);
  mbedtls_ssl_conf_rng(&config, tls_random, nullptr);
  EXPECT_EQ(mbedtls_ssl_conf_own_cert(&config, &certificate, &key), 0);
  EXPECT_EQ(mbedtls_ssl_setup(&ssl, &config), 0);
  mbedtls_ssl_set_bio(&ssl, &client, send_to, receive_from, nullptr);
  EXPECT_EQ(mbedtls_ssl_handshake(&ssl), 0);
  for (const std::int64_t deadline = end(); monotonic_ns() < deadline;)
    if (mbedtls_ssl_send_alert_message(&ssl, MBEDTLS_SSL_ALERT_LEVEL_WARNING, kUserCanceled) != 0) break;
  mbedtls_ssl_free(&ssl);
  mbedtls_ssl_config_free(&config);
  mbedtls_x509_crt_free(&certificate);
  mbedtls_pk_free(&key);
}

}  // namespace shadowib
