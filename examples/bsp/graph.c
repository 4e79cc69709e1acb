/* A graph of nodes with a number and two pointers each: values travel along the pointers, also to other processes.
 *
 *   bsprun -n P graph [NODES [ROUNDS]]      NODES in each process; checked by the sum that no round may change
 * Source: the graph of de Camargo, Kon, Goldman (2005), section 5.4: 20,000 nodes. */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
  long double value;
  struct node *left, *right;
};

int main(int argc, char** argv) {
  bsp_begin(bsp_nprocs());
  const int nodes = argc > 1 ? atoi(argv[1]) : 2000, rounds = argc > 2 ? atoi(argv[2]) : 20;
  const int p = bsp_nprocs(), s = bsp_pid();
  struct node** all = malloc(sizeof(*all) * nodes);
  for (int i = 0; i < nodes; ++i) {
    all[i] = malloc(sizeof(struct node));
    all[i]->value = i + (long double)nodes * s;
  }
  for (int i = 0; i < nodes; ++i) { /* a permutation each: what leaves a node arrives at one */
    all[i]->left = all[(i + 1) % nodes];
    all[i]->right = all[(i + 7) % nodes];
  }
  int tag_bytes = sizeof(int);
  bsp_set_tagsize(&tag_bytes);
  bsp_sync();
  long double* moved = malloc(sizeof(*moved) * nodes);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < nodes; ++i) moved[i] = 0;
    for (int i = 0; i < nodes; ++i) {
      struct node* to = round % 2 == 0 ? all[i]->left : all[i]->right;
      const int place = (int)(round % 2 == 0 ? (i + 1) % nodes : (i + 7) % nodes);
      if (to != all[place]) bsp_abort("node %d: a pointer is wrong", i);
      if (i % 5 == round % 5) /* to the node of that number in the next process */
        bsp_send((s + 1) % p, &place, &all[i]->value, sizeof(all[i]->value));
      else
        moved[place] += all[i]->value;
    }
    bsp_sync();
    int status, place;
    for (bsp_get_tag(&status, &place); status != -1; bsp_get_tag(&status, &place)) {
      long double value;
      bsp_move(&value, sizeof(value));
      moved[place] += value;
    }
    for (int i = 0; i < nodes; ++i) all[i]->value = moved[i];
  }
  long double sum = 0, total = 0, part;
  for (int i = 0; i < nodes; ++i) sum += all[i]->value;
  int none = 0, messages, bytes;
  bsp_send(0, &none, &sum, sizeof(sum));
  bsp_sync();
  for (bsp_qsize(&messages, &bytes); messages > 0; --messages) {
    bsp_move(&part, sizeof(part));
    total += part;
  }
  const long double count = (long double)nodes * p, expected = count * (count - 1) / 2;
  if (s == 0 && total != expected) bsp_abort("the sum is %.0Lf instead of %.0Lf", total, expected);
  if (s == 0) printf("graph: %d nodes in %d processes, %d rounds: right\n", nodes, p, rounds);
  bsp_end();
  return 0;
}
