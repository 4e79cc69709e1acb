// mpi_spawn ITERATIONS: one rank spawns two others by MPI_Comm_spawn, and has each number it sends come back with the
// rank added. Prints the sum of the answers, and the sum that is right. All take leave of each other by
// MPI_Comm_disconnect.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSpawned = 2 };

static long ask(MPI_Comm children, int iterations) {
  long sum = 0;
  for (int i = 0; i < iterations; ++i)
    for (int child = 0; child < kSpawned; ++child) {
      int answer = 0;
      MPI_Send(&i, 1, MPI_INT, child, 0, children);
      MPI_Recv(&answer, 1, MPI_INT, child, 0, children, MPI_STATUS_IGNORE);
      sum += answer;
    }
  return sum;
}

static void answer(MPI_Comm parent, int rank, int iterations) {
  for (int i = 0; i < iterations; ++i) {
    int value = 0;
    MPI_Recv(&value, 1, MPI_INT, 0, 0, parent, MPI_STATUS_IGNORE);
    value += rank;
    MPI_Send(&value, 1, MPI_INT, 0, 0, parent);
  }
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  MPI_Init(&argc, &argv);
  const int iterations = atoi(argv[1]);
  int rank;
  MPI_Comm other;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_get_parent(&other);
  if (other != MPI_COMM_NULL) {
    answer(other, rank, iterations);
  } else {
    MPI_Comm_spawn(argv[0], argv + 1, kSpawned, MPI_INFO_NULL, 0, MPI_COMM_SELF, &other, MPI_ERRCODES_IGNORE);
    const long right = kSpawned * ((long)iterations * (iterations - 1) / 2) + iterations;
    printf("sum %ld of %ld\n", ask(other, iterations), right);
  }
  MPI_Comm_disconnect(&other);
  MPI_Finalize();
  return 0;
}
