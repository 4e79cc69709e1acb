/* Shared by the programs of two clusters: how they fail, and the socket by which they meet. */
#pragma once

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ends the process with code 3, at once. */
static void fail(const char* what, uint64_t number) {
  printf("%s: %llu\n", what, (unsigned long long)number);
  fflush(stdout);
  _exit(3);
}
#define MUST(condition)                           \
  do {                                            \
    if (!(condition)) fail(#condition, __LINE__); \
  } while (0)

/* A stream between two processes: one accepts at `place`, the other one connects, and waits until it can. It is
   "PORT", of this host, or "ADDRESS:PORT", of the host of the one that accepts. */
static int socket_to(const char* place, int accepts) {
  unsigned byte[4], port = 0;
  in_addr_t host = INADDR_LOOPBACK;
  if (sscanf(place, "%u.%u.%u.%u:%u", &byte[0], &byte[1], &byte[2], &byte[3], &port) == 5)
    host = byte[0] << 24 | byte[1] << 16 | byte[2] << 8 | byte[3];
  else
    port = (unsigned)atoi(place);
  MUST(port > 0 && port < 65536);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(host)};
  const int on = 1;
  int s = socket(AF_INET, SOCK_STREAM, 0), peer;
  MUST(s >= 0);
  if (!accepts) {
    while (connect(s, (struct sockaddr*)&address, sizeof(address)) != 0) {
      close(s);
      usleep(10000);
      s = socket(AF_INET, SOCK_STREAM, 0);
    }
    return s;
  }
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  MUST(bind(s, (struct sockaddr*)&address, sizeof(address)) == 0 && listen(s, 1) == 0);
  peer = accept(s, NULL, NULL);
  MUST(peer >= 0);
  close(s);
  return peer;
}
