#include "ib2tcp/fuzz/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/rendezvous.h"

namespace shadowib::ib2tcp {
namespace {

std::map<std::string, std::string>& values() {
  static auto& all = *new std::map<std::string, std::string>;
  return all;
}

const HostServices kHost = [] {
  HostServices host{};
  host.abi_version = kBackendAbiVersion;
  host.set_errno = [](int value) { errno = value; };
  host.map = [](size_t bytes) { return calloc(1, bytes); };
  host.unmap = [](void* address, size_t) { free(address); };
  host.own_mapping = [](void*, size_t) {};
  host.disown_mapping = [](void*) {};
  host.own_descriptor = [](int fd) { return fd; };
  host.close_descriptor = [](int fd) { ::close(fd); };
  host.unowned_descriptors = [](bool) {};
  host.needs_clc = [](std::uint32_t, std::uint32_t) {};
  host.publish = [](const char* key, const void* value, size_t bytes) {
    values()[key] = std::string(static_cast<const char*>(value), bytes);
    return 0;
  };
  host.lookup = [](const char* key, void* value, size_t capacity, size_t* bytes) {
    auto it = values().find(key);
    if (it == values().end()) return ENOENT;
    *bytes = it->second.size();
    memcpy(value, it->second.data(), std::min(capacity, it->second.size()));
    return 0;
  };
  host.claim = [](const char* key) { return values().emplace(key, "").second ? 0 : EEXIST; };
  host.job_key = [](uint8_t key[32]) {
    memset(key, 7, 32);
    return 0;
  };
  host.config = [](const char*) -> const char* { return nullptr; };
  host.log = [](int, const char*) {};
  return host;
}();

}  // namespace

void start_fuzz_host(std::uint16_t peer_lid) {
  g_host = &kHost;
  g_engine = new Engine;
  if (g_engine->open() != 0) abort();
  publish_fuzz_peer(peer_lid, 0, 1);
}

void publish_fuzz_peer(std::uint16_t peer_lid, std::uint16_t cluster, std::uint8_t number) {
  Endpoint peer{};
  peer.magic = kEndpointMagic;
  peer.version = kEndpointVersion;
  peer.lid = peer_lid;
  peer.cluster = cluster;
  memset(peer.uuid, number, sizeof(peer.uuid));
  const std::string key = "ib2tcp/ep/" + std::to_string(peer_lid);
  values()[key] = std::string(reinterpret_cast<char*>(&peer), sizeof(peer));
  values()["ib2tcp/lid/" + std::to_string(peer_lid)] = "";
}

}  // namespace shadowib::ib2tcp
