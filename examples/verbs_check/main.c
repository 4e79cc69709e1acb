#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const char* g_role = "verbs_check";

void die(const char* format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s: ", g_role);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  exit(1);
}

static void usage(int code) {
  fprintf(code ? stderr : stdout,
          "verbs_check [options]        waits for a client\n"
          "verbs_check [options] HOST   connects to the server on HOST\n"
          "verbs_check --pair [options] runs both\n"
          "  --iters N      iterations (1000)           --size N   bytes per message, multiple of 8, >= 16 (4096)\n"
          "  --depth N      messages per iteration (16) --events   wait for completion events\n"
          "  --port N       TCP port (18516; 0: any)    --device NAME   RDMA device\n"
          "  --ib-port N    its port (1)                --gid N    GID index; without it, the LID is used\n"
          "  --srq          receives from a shared queue  --extended posts and polls by extended verbs\n"
          "  --talk US      keeps the TCP connection and talks over it, too; US microseconds of rest an iteration\n"
          "  --one-way      no requests that bring something back: no atomics, no RDMA reads\n"
          "  --ack-timeout N  wait 4.1 us * 2^N for an acknowledgement (14)\n"
          "Exits with 0 if every byte, number and total was right.\n");
  exit(code);
}

static long number(const char* text, long least) {
  char* end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || *end || end == text || value < least) die("%s: expected a number of at least %ld", text, least);
  return value;
}

static struct options parse(int argc, char** argv) {
  static const struct option kLong[] = {
      {"iters", 1, 0, 'n'}, {"size", 1, 0, 's'},    {"depth", 1, 0, 'd'},       {"events", 0, 0, 'e'},
      {"port", 1, 0, 'p'},  {"device", 1, 0, 'D'},  {"ib-port", 1, 0, 'i'},     {"gid", 1, 0, 'g'},
      {"pair", 0, 0, 'P'},  {"srq", 0, 0, 'q'},     {"extended", 0, 0, 'x'},    {"help", 0, 0, 'h'},
      {"talk", 1, 0, 't'},  {"one-way", 0, 0, 'a'}, {"ack-timeout", 1, 0, 'T'}, {0, 0, 0, 0}};
  struct options o = {.tcp_port = 18516,
                      .ib_port = 1,
                      .gid_index = -1,
                      .depth = 16,
                      .iterations = 1000,
                      .size = 4096,
                      .talk_us = -1,
                      .ack_timeout = 14};
  for (int c; (c = getopt_long(argc, argv, "n:s:d:ep:h", kLong, NULL)) != -1;) {
    switch (c) {
      case 'n':
        o.iterations = number(optarg, 1);
        break;
      case 's':
        o.size = (uint32_t)number(optarg, 16) / 8 * 8;
        break;
      case 'd':
        o.depth = (int)number(optarg, 1);
        break;
      case 'e':
        o.events = true;
        break;
      case 'p':
        o.tcp_port = (int)number(optarg, 0);
        break;
      case 'D':
        o.device = optarg;
        break;
      case 'i':
        o.ib_port = (int)number(optarg, 1);
        break;
      case 'g':
        o.gid_index = (int)number(optarg, 0);
        break;
      case 'P':
        o.pair = true;
        break;
      case 'q':
        o.srq = true;
        break;
      case 'x':
        o.extended = true;
        break;
      case 'a':
        o.one_way = true;
        break;
      case 't':
        o.talk_us = number(optarg, 0);
        break;
      case 'T':
        o.ack_timeout = (int)number(optarg, 0);
        break;
      case 'h':
        usage(0);
        break;
      default:
        usage(2);
    }
  }
  if (optind < argc) o.host = argv[optind++];
  if (optind < argc || o.depth > 1024 || o.ack_timeout > 31) usage(2);
  return o;
}

/* Both sides; a listener or a connection is given, or a host to connect to. */
static int run(const struct options* options, int listener, int connection) {
  struct side s = {.options = *options};
  make_objects(&s);
  if (connection < 0)
    connection = options->host ? connect_to(options->host, options->tcp_port) : accept_client(listener);
  exchange(connection, &s.own, &s.peer);
  connect_objects(&s);
  finish_exchange(connection);
  s.connection = connection;
  if (options->talk_us < 0) close(connection);
  int result = run_iterations(&s);
  destroy_objects(&s);
  printf("%s: %ld iterations of %d messages of %u bytes, all as they should be\n", g_role, options->iterations,
         options->depth, options->size);
  fflush(stdout);
  return result;
}

/* The child is the client; a socket pair stands for the TCP connection, so that either sees the other's end. */
static int run_pair(const struct options* options) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) die("socketpair: %m");
  pid_t client = fork();
  if (client < 0) die("fork: %m");
  g_role = client == 0 ? "client" : "server";
  close(sockets[client == 0]);
  int result = run(options, -1, sockets[client != 0]), status;
  if (client == 0) return result;
  if (waitpid(client, &status, 0) != client || status != 0) die("the client failed (status %d)", status);
  return result;
}

int main(int argc, char** argv) {
  struct options options = parse(argc, argv);
  if (options.pair) return run_pair(&options);
  g_role = options.host ? "client" : "server";
  if (options.host) return run(&options, -1, -1);
  int listener = listen_on(&options.tcp_port);
  printf("listening on port %d\n", options.tcp_port);
  fflush(stdout);
  return run(&options, listener, -1);
}
