/* Shared by the programs of two clusters: how they fail, and the socket by which they meet. */
#pragma once

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
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

/* A stream between two processes of this host: one accepts at `port`, the other one connects, and waits until it can.
 */
static int socket_to(int port, int accepts) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
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
