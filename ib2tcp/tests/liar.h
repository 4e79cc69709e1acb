// A process of a test that speaks ib2tcp's protocol by hand, and as it likes.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium/crypto_generichash.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <string>

#include "ib2tcp/rendezvous.h"
#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/process.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp::testing {

using Record = ::shadowib::ib2tcp::Endpoint;  // as published

inline Record record_of(FakeExchange& exchange, const Device& device) {
  std::lock_guard<std::mutex> guard(exchange.mutex);
  Record record;
  std::memcpy(&record, exchange.values.at("ib2tcp/ep/" + std::to_string(device.port.lid)).data(), sizeof(record));
  return record;
}

inline int dial(const Record& to) {
  if (to.tcp_port != 0) {
    int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(to.tcp_port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, to.unix_name, to.unix_name_bytes);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + to.unix_name_bytes)),
            0);
  return fd;
}

// Bytes read until `bytes` are there, the other side closes or a second passes without any.
inline std::string read_up_to(int fd, std::size_t bytes) {
  std::string got;
  char buffer[4096];
  while (got.size() < bytes) {
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 1000) != 1) break;
    ssize_t n = ::read(fd, buffer, std::min(sizeof(buffer), bytes - got.size()));
    if (n <= 0) break;
    got.append(buffer, static_cast<std::size_t>(n));
  }
  return got;
}

inline bool closed(int fd) {
  pollfd p{fd, POLLIN, 0};
  char byte;
  return ::poll(&p, 1, 60000) == 1 && ::recv(fd, &byte, 1, 0) <= 0;
}

// The seed of a liar's uuid: two with the same are one process that connects again.
inline std::uint64_t random_uuid() { return std::random_device{}(); }

// The cluster that a liar names (index + 1), in its record and in its greeting.
struct Claims {
  std::uint16_t recorded = 0, greeted = 0;
  std::uint32_t incarnation = 0, victims_incarnation = 0;
};

// A member of the job, or nearly, that speaks the protocol by hand over TCP.
class Liar {
 public:
  Liar(FakeExchange& exchange, const Device& victim, std::uint8_t key_byte, std::uint64_t uuid = random_uuid(),
       std::uint16_t own_lid = 0x7777, const Claims& claims = {}) {
    Record to = record_of(exchange, victim);
    Record me = to;
    std::mt19937_64 random(uuid);
    for (auto& byte : me.uuid) byte = static_cast<std::uint8_t>(random());
    me.lid = lid = own_lid;
    me.tcp_port = 0;
    me.unix_name_bytes = 0;
    me.cluster = claims.recorded;
    me.incarnation = claims.incarnation;
    {
      std::lock_guard<std::mutex> guard(exchange.mutex);
      exchange.values["ib2tcp/ep/" + std::to_string(lid)] = std::string(reinterpret_cast<char*>(&me), sizeof(me));
    }
    fd = dial(to);
    Greeting greeting{};
    greeting.magic = kHandshakeMagic;
    greeting.version = kHandshakeVersion;
    greeting.kind = StreamKind::kTcp;
    greeting.frame_version = kWireVersion;
    greeting.lid = lid;
    std::memcpy(greeting.from, me.uuid, 16);
    std::memcpy(greeting.to, to.uuid, 16);
    greeting.cluster = claims.greeted;
    greeting.from_incarnation = claims.incarnation;
    greeting.to_incarnation = claims.victims_incarnation;
    send(&greeting, sizeof(greeting));
    std::string challenge = read_up_to(fd, sizeof(Challenge));
    if (challenge.size() != sizeof(Challenge)) return;
    Proof proof;
    unsigned char key[32];
    std::memset(key, key_byte, sizeof(key));
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, 32, 32);
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>("C"), 1);
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&greeting), sizeof(greeting));
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(challenge.data()), challenge.size());
    crypto_generichash_final(&state, proof.mac, 32);
    send(&proof, sizeof(proof));
    const std::string answer = read_up_to(fd, sizeof(Answer));
    answered = answer.size() == sizeof(Answer);
    if (!answered) return;
    std::memcpy(&verdict, answer.data(), sizeof(verdict));
    FrameHeader hello{};
    hello.version = kWireVersion;
    hello.opcode = Opcode::kHello;
    send(&hello, sizeof(hello));
  }
  ~Liar() { ::close(fd); }
  void send(const void* data, std::size_t bytes) const { ::send(fd, data, bytes, MSG_NOSIGNAL); }
  // The answer to one request, or opcode 0.
  FrameHeader ask(FrameHeader header) const {
    send(&header, sizeof(header));
    std::string got = read_up_to(fd, sizeof(FrameHeader));
    FrameHeader answer{};
    if (got.size() == sizeof(answer)) std::memcpy(&answer, got.data(), sizeof(answer));
    return answer;
  }
  int fd = -1;
  std::uint16_t lid = 0;
  bool answered = false;
  Verdict verdict{};
};

}  // namespace shadowib::ib2tcp::testing
