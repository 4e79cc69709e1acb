#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

int listen_on(int* port) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
  socklen_t length = sizeof(address);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener, (struct sockaddr*)&address, length) || listen(listener, 1) ||
      getsockname(listener, (struct sockaddr*)&address, &length))
    die("cannot listen on TCP port %d: %m", *port);
  *port = ntohs(address.sin_port);
  return listener;
}

void exchange(int connection, const struct address* own, struct address* peer) {
  if (write(connection, own, sizeof(*own)) != sizeof(*own)) die("cannot send the address: %m");
  size_t got = 0;
  while (got < sizeof(*peer)) {
    ssize_t n = read(connection, (char*)peer + got, sizeof(*peer) - got);
    if (n <= 0) die("the other side hung up during the exchange of addresses");
    got += (size_t)n;
  }
}

void finish_exchange(int connection) {
  char ready = 'r';
  if (write(connection, &ready, 1) != 1 || read(connection, &ready, 1) != 1) die("the other side hung up");
}

void talk(int connection, uint64_t iteration, long rest_us) {
  uint64_t said = 0;
  if (write(connection, &iteration, sizeof(iteration)) != sizeof(iteration)) die("cannot talk to the other side: %m");
  if (recv(connection, &said, sizeof(said), MSG_WAITALL) != sizeof(said)) die("the other side hung up");
  if (said != iteration) die("iteration %lu: the other side says that it is at %lu", iteration, said);
  usleep((useconds_t)rest_us);
}

int accept_client(int listener) {
  int connection = accept(listener, NULL, NULL);
  if (connection < 0) die("accept: %m");
  close(listener);
  return connection;
}

int connect_to(const char* host, int port) {
  char service[16];
  snprintf(service, sizeof(service), "%d", port);
  struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
  int failed = getaddrinfo(host, service, &hints, &found);
  if (failed) die("%s: %s", host, gai_strerror(failed));
  int connection = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(connection, found->ai_addr, found->ai_addrlen)) die("cannot connect to %s:%d: %m", host, port);
  freeaddrinfo(found);
  return connection;
}
