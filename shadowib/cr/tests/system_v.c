/* System V semaphores and queues of two members: what each has undone at its end, and a call that waits for one. */
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <unistd.h>

#include "scenario.h"

struct message {
  long type;
  char text[16];
};

static int set, queue;

static int operate(unsigned short number, short by, short flags) {
  struct sembuf operation = {number, by, flags};
  return semop(set, &operation, 1);
}

static void open_both(uint32_t first, int flags) {
  const key_t key = (key_t)(0x5e000000 + first);
  set = semget(key, 2, 0600 | flags);
  queue = msgget(key, 0600 | flags);
  CHECK(set >= 0 && queue >= 0);
}

static void semaphores_first(void) {
  int unused;
  uint32_t peer;
  struct message message = {1, "of the first"};
  make_pair(1 << 16);
  open_both((uint32_t)getpid(), IPC_CREAT | IPC_EXCL);
  CHECK(operate(0, 10, 0) == 0 && operate(0, -2, SEM_UNDO) == 0);
  CHECK(msgsnd(queue, &message, sizeof(message.text), 0) == 0);
  tell("process", (uint32_t)getpid());
  await("taken", &unused, &peer);
  for (int times = 0; times < 4; ++times) {
    if (times % 2 == 0)
      checkpoint_and_go_on();
    else
      checkpoint_and_kill();
    CHECK(semctl(set, 0, GETVAL) == 7 && semctl(set, 1, GETVAL) == 0);
    CHECK(semget((key_t)(0x5e000000 + getpid()), 2, 0) == set);
  }
  CHECK(msgrcv(queue, &message, sizeof(message.text), 2, 0) == sizeof(message.text));
  CHECK(strcmp(message.text, "of the second") == 0);
  CHECK(msgrcv(queue, &message, sizeof(message.text), 0, IPC_NOWAIT) == sizeof(message.text) && message.type == 1);
  CHECK(operate(1, 1, 0) == 0); /* the other goes on, and ends */
  for (double end = now() + any_time; semctl(set, 0, GETVAL) != 8 && now() < end;) usleep(1000);
  CHECK(semctl(set, 0, GETVAL) == 8);
  CHECK(semctl(set, 0, IPC_RMID) == 0 && msgctl(queue, IPC_RMID, NULL) == 0);
  send_one(1);
}

static void semaphores_second(void) {
  int unused;
  uint32_t peer;
  struct message message = {2, "of the second"};
  join();
  await("process", &unused, &peer);
  open_both(peer, 0);
  CHECK(operate(0, -1, SEM_UNDO) == 0);
  CHECK(msgsnd(queue, &message, sizeof(message.text), 0) == 0);
  tell("taken", 0);
  CHECK(operate(1, -1, 0) == 0); /* waits through all checkpoints and restarts */
}

const struct scenario system_v_scenarios[] = {
    {"semaphores_first", semaphores_first}, {"semaphores_second", semaphores_second}, {NULL, NULL}};
