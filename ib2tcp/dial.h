// Connecting to a peer that listens on several addresses, of which some may be dead.
//
// The addresses are tried in their order, the next one each time an attempt has failed or is kStaggerNs old; the
// first connection wins and ends the others. Under the engine's lock. Source: RFC 8305 (Happy Eyeballs), section 5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ib2tcp/engine.h"
#include "shadowib/base/networks.h"

namespace shadowib::ib2tcp {

struct WayToPeer {
  IpAddress to;
  bool has_source = false;
  IpAddress from{};    // where the connection must leave from
  std::size_t number;  // the caller's
};

class Dial {
 public:
  static constexpr std::int64_t kStaggerNs = 100'000'000;

  // Tells `told` once, from the engine: a connected socket (owned, non-blocking, taken) and the number of its way, or
  // -1 and the reason. nullptr with errno if every attempt failed at once: nobody is told. It deletes itself.
  using Told = void (*)(void* owner, int fd, std::size_t way, const char* reason);
  static Dial* start(std::vector<WayToPeer> ways, std::uint16_t port, Told told, void* owner);

  // Whether an address has not been tried yet, or not for long.
  bool has_more() const { return next_.hook.is_linked(); }
  // Ends all attempts and tells nobody.
  void abandon();

 private:
  struct Attempt {
    Dial* dial;
    int fd;
    std::size_t way;
    Watch watch;
  };

  Dial(std::vector<WayToPeer> ways, std::uint16_t port, Told told, void* owner);
  ~Dial() = default;
  friend class Engine;

  bool begin_next();
  bool begin(const WayToPeer& way);
  void on_ready(Attempt& attempt);
  void go_on();
  void finish(int fd, std::size_t way, const char* reason);

  std::vector<WayToPeer> ways_;
  std::uint16_t port_;
  Told told_;
  void* owner_;
  std::size_t begun_ = 0;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  Timer next_;
  int last_error_ = 0;
};

}  // namespace shadowib::ib2tcp
