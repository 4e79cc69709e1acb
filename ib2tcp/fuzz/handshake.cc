// Fuzz target: the bytes a stranger sends to a listener, before it has proved anything.
#include "ib2tcp/handshake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/fuzz/host.h"
#include "ib2tcp/rendezvous.h"

using namespace shadowib::ib2tcp;

namespace {

constexpr std::uint16_t kPeerLid = 7;

ibv_context* start() {
  start_fuzz_host(kPeerLid);
  int count = 0;
  ibv_device** list = get_device_list(&count);
  if (list == nullptr) abort();
  ibv_context* context = open_device(list[0]);
  if (context == nullptr) abort();
  free_device_list(list);
  return context;
}

}  // namespace

// The first byte: which kind of stream, how many bytes at a time, whether the greeting's fields are made to fit.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ibv_context* const context = start();
  (void)context;
  if (size < 1) return 0;
  const bool unix_socket = (data[0] & 1) != 0, fitting = (data[0] & 2) != 0;
  const std::size_t piece = 1 + (data[0] >> 2);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) abort();
  char bytes[1024] = {};
  const std::size_t length = std::min(size - 1, sizeof(bytes));
  memcpy(bytes, data + 1, length);
  if (fitting && length >= sizeof(Greeting)) {
    Greeting greeting;
    memcpy(&greeting, bytes, sizeof(greeting));
    greeting.magic = kHandshakeMagic;
    greeting.version = kHandshakeVersion;
    greeting.kind = unix_socket ? StreamKind::kShm : StreamKind::kTcp;
    greeting.frame_version = kWireVersion;
    greeting.lid = kPeerLid;
    memset(greeting.from, 1, sizeof(greeting.from));
    memcpy(greeting.to, g_engine->rendezvous->self().uuid, sizeof(greeting.to));
    memcpy(bytes, &greeting, sizeof(greeting));
  }
  {
    EngineGuard guard;
    Handshake::accept(ends[0], unix_socket ? StreamKind::kShm : StreamKind::kTcp);
  }
  for (std::size_t at = 0; at < length; at += piece) {
    if (::send(ends[1], bytes + at, std::min(piece, length - at), MSG_NOSIGNAL) < 0) break;
    EngineGuard guard;
    g_engine->turn(false);
  }
  ::close(ends[1]);
  for (int turn = 0; turn < 10000 && g_engine->handshakes > 0; ++turn) {
    EngineGuard guard;
    g_engine->turn(true);
  }
  if (g_engine->handshakes != 0) abort();  // its other end has gone
  return 0;
}
