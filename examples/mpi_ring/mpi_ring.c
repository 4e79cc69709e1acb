// mpi_ring [ITERATIONS [ABORT_AT]]: messages around the ring of ranks, reductions, and one-sided access, every byte
// of which is checked as it comes, by content and by sequence. Ends with a line that holds a checksum of all that has
// been received, which is the same in every run of as many iterations and ranks. Exit code 0 if all was right. In
// iteration ABORT_AT the last rank aborts the job.
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  kWords = 2500,      // of the larger messages, which go by rendezvous; every other one is a few words
  kReduceEach = 8,    // iterations
  kOneSidedEach = 4,  // iterations
  kSlots = 64,        // words put into the neighbour's window
  kWindow = 72,       // words of it: MPICH 4.0.2 misplaces windows in shared memory that are no whole cache lines
};

static int g_rank, g_size;
static uint64_t g_checksum = 0xcbf29ce484222325u;

static uint64_t word(int iteration, int from, int at) {
  uint64_t x = (uint64_t)iteration * 0x9e3779b97f4a7c15u + (uint64_t)from * 0xbf58476d1ce4e5b9u + (uint64_t)at;
  x ^= x >> 29;
  return x * 0x94d049bb133111ebu;
}

static void check(int right, const char* what, int iteration) {
  if (right) return;
  fprintf(stderr, "mpi_ring: rank %d: wrong %s in iteration %d\n", g_rank, what, iteration);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void receive(uint64_t value) { g_checksum = (g_checksum ^ value) * 0x100000001b3u; }

static void pass_on(int iteration, int left, int right) {
  static uint64_t sent[kWords], received[kWords];
  const int words = iteration % 2 ? kWords : 3;
  sent[0] = (uint64_t)iteration;
  for (int at = 1; at < words; ++at) sent[at] = word(iteration, g_rank, at);
  MPI_Status status;
  MPI_Sendrecv(sent, words, MPI_UINT64_T, right, 1, received, kWords, MPI_UINT64_T, left, 1, MPI_COMM_WORLD, &status);
  int count = 0;
  MPI_Get_count(&status, MPI_UINT64_T, &count);
  check(count == words && received[0] == (uint64_t)iteration, "message", iteration);
  for (int at = 1; at < words; ++at) {
    check(received[at] == word(iteration, left, at), "content", iteration);
    receive(received[at]);
  }
}

static void reduce(int iteration) {
  uint64_t mine = word(iteration, g_rank, 7) >> 16, sum = 0, expected = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  for (int rank = 0; rank < g_size; ++rank) expected += word(iteration, rank, 7) >> 16;
  check(sum == expected, "sum", iteration);
  receive(sum);
}

// Puts into the right neighbour's window, a read of the left one's, and a counter that every rank adds to.
static void one_sided(MPI_Win window, uint64_t* memory, int iteration, int left, int right) {
  static uint64_t put[kSlots], got[kSlots];
  const int before = iteration - kOneSidedEach, leftmost = (left + g_size - 1) % g_size;
  for (int at = 0; at < kSlots; ++at) put[at] = word(iteration, g_rank, at + 1);
  const uint64_t one = 1;
  MPI_Win_fence(0, window);
  MPI_Get(got, kSlots, MPI_UINT64_T, left, 1, kSlots, MPI_UINT64_T, window);  // what its left neighbour put last time
  MPI_Accumulate(&one, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, MPI_SUM, window);
  MPI_Win_fence(0, window);
  MPI_Put(put, kSlots, MPI_UINT64_T, right, 1, kSlots, MPI_UINT64_T, window);
  MPI_Win_fence(0, window);
  for (int at = 0; at < kSlots; ++at) {
    check(before < 0 || got[at] == word(before, leftmost, at + 1), "word read", iteration);
    check(memory[at + 1] == word(iteration, left, at + 1), "word put", iteration);
    receive(memory[at + 1]);
  }
  if (g_rank == 0)
    check(memory[0] == (uint64_t)g_size * (uint64_t)(iteration / kOneSidedEach + 1), "counter", iteration);
}

int main(int argc, char** argv) {
  const int iterations = argc > 1 ? atoi(argv[1]) : 1000, abort_at = argc > 2 ? atoi(argv[2]) : -1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_size);
  const int left = (g_rank + g_size - 1) % g_size, right = (g_rank + 1) % g_size;
  uint64_t* memory = NULL;
  MPI_Win window;
  MPI_Win_allocate(kWindow * sizeof(uint64_t), sizeof(uint64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  for (int at = 0; at < kWindow; ++at) memory[at] = 0;
  MPI_Win_fence(0, window);
  for (int iteration = 0; iteration < iterations; ++iteration) {
    if (iteration == abort_at && g_rank == g_size - 1) MPI_Abort(MPI_COMM_WORLD, 3);
    pass_on(iteration, left, right);
    if (iteration % kReduceEach == 0) reduce(iteration);
    if (iteration % kOneSidedEach == 0) one_sided(window, memory, iteration, left, right);
  }
  MPI_Win_free(&window);
  uint64_t all = 0;
  MPI_Reduce(&g_checksum, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
  MPI_Finalize();
  if (g_rank == 0)
    printf("mpi_ring: %d iterations with %d ranks, checksum %016" PRIx64 "\n", iterations, g_size, all);
  return 0;
}
