// A rank of a launcher that speaks PMIx, and no MPI: rank 0 tells all ranks of events once there is a file "go" where
// it runs, which may be after a restart. Each says what its handlers have heard. Registered before "go": FIRST's
// handler, and behind it: SECOND's and LAST's. FIRST is told again when its handler is gone, which nobody must hear
// of.
#include <pmix.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST = PMIX_EXTERNAL_ERR_BASE - 1, SECOND = FIRST - 1, LAST = FIRST - 2, LOCAL = FIRST - 3 };

static pmix_proc_t self;
static atomic_int heard[4], done, inside;
static atomic_size_t number;

static void must(const char* what, pmix_status_t status) {
  if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return;
  fprintf(stderr, "rank %u: %s: %s (%d)\n", self.rank, what, PMIx_Error_string(status), status);
  exit(1);
}

static void hear(size_t id, pmix_status_t status, const pmix_proc_t* source, pmix_info_t info[], size_t ninfo,
                 pmix_info_t results[], size_t nresults, pmix_event_notification_cbfunc_fn_t finished, void* data) {
  (void)id, (void)results, (void)nresults;
  // LOCAL is each rank's own; of the others rank 0 tells, by text and number.
  int right = atomic_fetch_add(&inside, 1) == 0;  // handlers run one after the other
  right = right && (status == LOCAL ? source->rank == self.rank : source->rank == 0);
  if (status == FIRST || status == SECOND) {
    int found = 0;
    for (size_t i = 0; i < ninfo; ++i) {
      found += strcmp(info[i].key, "test.text") == 0 && strcmp(info[i].value.data.string, "what happened") == 0;
      found += strcmp(info[i].key, "test.number") == 0 && info[i].value.data.uint32 == 77;
    }
    right = right && found == 2;
  }
  if (right)
    ++heard[FIRST - status];
  else
    fprintf(stderr, "rank %u: event %d of rank %u is not what was told\n", self.rank, status, source->rank);
  usleep(1000);
  --inside;
  if (finished != NULL) finished(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void registered(pmix_status_t status, size_t id, void* data) {
  (void)data;
  must("registering", status);
  number = id;
  done = 1;
}

static void ended(pmix_status_t status, void* data) {
  must(data, status);
  done = 1;
}

static void await_answer(void) {
  while (!done) usleep(1000);
  done = 0;
}

static size_t listen_to(pmix_status_t code) {
  must("registering", PMIx_Register_event_handler(&code, 1, NULL, 0, hear, registered, NULL));
  await_answer();
  return number;
}

static void fence(void) { must("a fence", PMIx_Fence(NULL, 0, NULL, 0)); }

static void tell(pmix_status_t code, pmix_data_range_t range) {
  pmix_info_t info[2] = {0};
  strcpy(info[0].key, "test.text");
  info[0].value.type = PMIX_STRING;
  info[0].value.data.string = "what happened";
  strcpy(info[1].key, "test.number");
  info[1].value.type = PMIX_UINT32;
  info[1].value.data.uint32 = 77;
  must("an event", PMIx_Notify_event(code, &self, range, info, 2, ended, "an event"));
  await_answer();
}

static void await_event(int code) {
  while (heard[FIRST - code] == 0) usleep(1000);
}

int main(void) {
  must("PMIx_Init", PMIx_Init(&self, NULL, 0));
  const size_t first = listen_to(FIRST);
  fence();
  if (self.rank == 0) puts("ready"), fflush(stdout);
  while (access("go", F_OK) != 0) usleep(10000);
  listen_to(SECOND);
  listen_to(LAST);
  listen_to(LOCAL);
  fence();
  if (self.rank == 0) tell(FIRST, PMIX_RANGE_NAMESPACE), tell(SECOND, PMIX_RANGE_SESSION);
  tell(LOCAL, PMIX_RANGE_PROC_LOCAL);
  await_event(FIRST);
  await_event(SECOND);
  await_event(LOCAL);
  must("deregistering", PMIx_Deregister_event_handler(first, ended, "deregistering"));
  await_answer();
  fence();
  if (self.rank == 0) tell(FIRST, PMIX_RANGE_NAMESPACE), tell(LAST, PMIX_RANGE_NAMESPACE);
  await_event(LAST);
  printf("rank %u has heard %d %d %d %d\n", self.rank, heard[0], heard[1], heard[2], heard[3]);
  fence();
  must("PMIx_Finalize", PMIx_Finalize(NULL, 0));
  return 0;
}
