// A server that says nothing, in as many words: warning alerts of TLS, one after the other, to the one client that
// it lets in. It stops once the client has gone, or after kLastsS, for a test that would else not end.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

namespace shadowib {

class BabblingServer {
 public:
  static constexpr int kLastsS = 60;

  // From where the handshake would begin, or, with the server's certificate and key as PEM files, from its end.
  explicit BabblingServer(std::string certificate = "", std::string key = "");
  ~BabblingServer();
  BabblingServer(const BabblingServer&) = delete;
  BabblingServer& operator=(const BabblingServer&) = delete;

  // rediss://127.0.0.1:PORT/0/test
  std::string uri() const { return "rediss://127.0.0.1:" + std::to_string(port_) + "/0/test"; }

 private:
  void babble() const;
  void babble_inside(int client) const;

  const std::string certificate_, key_;
  std::uint16_t port_ = 0;
  int listener_ = -1;
  std::thread thread_;
};

}  // namespace shadowib
