// TLS 1.2 over a socket, where threads of the program stand still, by mbed TLS. Every call it makes of malloc, the
// clock's calendar and the socket is turned to functions that take no lock of the program's (CMakeLists.txt here).
// Its memory, keys included, is in no image (arena_allocate_secret). A restart has an object of a session without its
// memory, which only says that the session is lost, and can be deleted.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "shadowib/base/status.h"

namespace shadowib {

// Whom to believe and who to be. Files are PEM, and read for each session: what a site renews is taken at the next.
struct TlsPlace {
  std::string authorities;       // of those whose certificates are believed; "": the system's
  std::string certificate, key;  // of this user, for servers that ask; both or none
  std::string server_name;       // what the server's certificate has to be for: a DNS name or a numeric address
};

class TlsSession {
 public:
  // Takes a connected socket that does not block, which stays the caller's. Returns kPermission or kUsage if a file
  // cannot be read, or holds something else; kIo without memory. `shown`: the exchange, for messages.
  static Status begin(const TlsPlace& place, const std::string& shown, int socket,
                      std::unique_ptr<TlsSession>* session);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // All three return what send and recv do: -1 with errno, which is EAGAIN while the socket has to be waited for (for
  // waits_for()), and EPROTO where trouble() tells more. None stays long, whatever the server sends: EAGAIN may come
  // while there is more to receive, so that the caller looks at its deadline. A send that returned EAGAIN has to be
  // repeated as it was.
  int shake_hands();  // 0: done, and the server is who it should be
  long send(std::string_view bytes);
  long receive(void* to, std::size_t bytes);

  short waits_for() const { return waits_for_; }  // POLLIN or POLLOUT
  Status trouble() const;                         // of the last failure, with what to do about it

 private:
  struct State;
  TlsSession(const std::string& shown, State* state);
  // Where a restart, or a fork, has left this object without state_.
  bool gone() const;
  int lost();
  long result(int code);
  Status read_files(const TlsPlace& place);
  bool names_address() const;

  const std::string shown_;
  State* const state_;
  const unsigned forgotten_;  // arena_secrets_forgotten() when state_ was made
  std::string server_name_;
  int code_ = 0;
  short waits_for_ = 0;
};

}  // namespace shadowib
