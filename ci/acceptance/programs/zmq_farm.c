/* A farm of null tasks with 64 bytes each way over ZeroMQ: a master, and a worker that is its fork, by ipc. Prints
 * the microseconds of a task, from the 1000th result to the last. Usage: zmq_farm TASKS OUTSTANDING ENDPOINT */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { kWarm = 1000, kBytes = 64 };

static void need(int good, const char* what) {
  if (good) return;
  perror(what);
  exit(1);
}
static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const long tasks = atol(argv[1]) + kWarm, outstanding = atol(argv[2]);
  char message[kBytes] = {0};
  const pid_t worker = fork();
  need(worker >= 0, "fork");
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_DEALER);
  need((worker != 0 ? zmq_bind : zmq_connect)(socket, argv[3]) == 0, argv[3]);
  if (worker == 0) {
    for (long i = 0; i < tasks; ++i) {
      need(zmq_recv(socket, message, kBytes, 0) == kBytes, "zmq_recv");
      need(zmq_send(socket, message, kBytes, 0) == kBytes, "zmq_send");
    }
  } else {
    double begun = 0;
    for (long sent = 0, got = 0; got < tasks; ++got) {
      for (; sent < tasks && sent < got + outstanding; ++sent)
        need(zmq_send(socket, message, kBytes, 0) == kBytes, "zmq_send");
      need(zmq_recv(socket, message, kBytes, 0) == kBytes, "zmq_recv");
      if (got + 1 == kWarm) begun = now_us();
    }
    printf("%.3f us a task\n", (now_us() - begun) / (double)(tasks - kWarm));
  }
  zmq_close(socket);
  zmq_ctx_term(context);
  int status = 0;
  return worker != 0 && (waitpid(worker, &status, 0) != worker || status != 0);
}
