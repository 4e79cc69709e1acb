// mpi_ring ITERATIONS: passes a message around the ring of ranks, checks every byte of it, and ends with a reduction.
// Exit code 0 if all was right.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBytes = 20000 };  // of the larger messages, which go by rendezvous; every other one is small

static unsigned char expected(int iteration, int from, int at) {
  return (unsigned char)(iteration * 31 + from * 7 + at);
}

int main(int argc, char** argv) {
  static unsigned char sent[kBytes], received[kBytes];
  int rank, size;
  int const iterations = argc > 1 ? atoi(argv[1]) : 100;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int const left = (rank + size - 1) % size, right = (rank + 1) % size;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    int const bytes = iteration % 2 ? kBytes : 8;
    for (int at = 0; at < bytes; ++at) sent[at] = expected(iteration, rank, at);
    memset(received, 0, sizeof received);
    MPI_Sendrecv(sent, bytes, MPI_BYTE, right, 1, received, bytes, MPI_BYTE, left, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int at = 0; at < bytes; ++at) {
      if (received[at] != expected(iteration, left, at)) {
        fprintf(stderr, "rank %d: invalid data in iteration %d, byte %d\n", rank, iteration, at);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    }
  }
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d iterations with %d ranks, sum %d\n", iterations, size, sum);
  MPI_Finalize();
  return sum == size * (size - 1) / 2 ? 0 : 1;
}
