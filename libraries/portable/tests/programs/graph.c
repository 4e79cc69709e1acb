/* A graph that grows between sites: structs that point at each other, bit-fields, flexible arrays, functions by
 * pointer, pointers past the end, a union of one kind, strings. */
#include <shadowib/portable.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node;
typedef long (*Visit)(const struct node*, long);

struct edge {
  struct node* to;
  char label;
  long weight;
  struct edge* next;
};

struct node {
  unsigned colour : 3;
  int balance : 11;
  unsigned long id : 29;
  char name[7];
  _Bool seen;
  float mass;
  short degree;
  struct edge *first, **last;
  Visit visit;
  const char* kind;
  union {
    unsigned bits;
    unsigned mask;
  } u;
};

struct list {
  size_t count, room;
  struct node* nodes[];
};

static struct list* all;
static struct {
  short a;
  long b[3];
  long double c;
  const char* where;
} mixed = {7, {1, -2, 3}, 0.25L, "mixed"};
static long squares[8], *end_of_squares = squares + 8;
enum kind { kSmall = -1, kGreat = 70000 };
static enum kind kinds[4] = {kSmall, kGreat, 0, 5};

static long by_weight(const struct node* node, long so_far) {
  for (const struct edge* e = node->first; e; e = e->next) so_far = so_far * 3 % 1000003 + e->weight;
  return so_far;
}
static long by_colour(const struct node* node, long so_far) {
  return so_far * 7 % 1000003 + node->colour + node->balance;
}

static struct node* make_node(unsigned long id) {
  struct node* node = malloc(sizeof *node);
  node->colour = id % 8;
  node->balance = id % 2 ? -(int)id : (int)id;
  node->id = id;
  snprintf(node->name, sizeof node->name, "n%lu", id);
  node->mass = 1.5f * id;
  node->last = &node->first;
  node->visit = id % 3 ? by_weight : by_colour;
  node->kind = id % 2 ? "odd" : "even";
  node->u.bits = 0x80000000u | id;
  return node;
}

static void add_edge(struct node* from, struct node* to, long weight) {
  struct edge* e = malloc(sizeof *e);
  e->to = to, e->weight = weight, e->label = weight % 2 ? 'o' : 'e', e->next = NULL;
  *from->last = e;
  from->last = &e->next;
  from->degree++;
}

static void add_node(unsigned long id) {
  if (all->count == all->room) {
    all->room *= 2;
    all = realloc(all, sizeof *all + all->room * sizeof all->nodes[0]);
  }
  all->nodes[all->count++] = make_node(id);
}

static long depth_first(struct node* node, long so_far, int depth, long* deepest) {
  if (node->seen || depth > 9) return so_far;
  node->seen = 1;
  if (depth > *deepest) *deepest = depth;
  so_far = node->visit(node, so_far);
  if (node->id % 5 == 0) shadowib_portable_site();
  for (struct edge* e = node->first; e; e = e->next)
    so_far = depth_first(e->to, so_far + e->label, depth + 1, deepest);
  return so_far;
}

int main(int argc, char** argv) {
  all = malloc(sizeof *all + 2 * sizeof all->nodes[0]);
  all->count = 0, all->room = 2;
  long total = 0, deepest = 0;
  for (unsigned long id = 0; id < 40; id++) {
    add_node(id);
    for (unsigned long other = id / 2; other < id; other += 3)
      add_edge(all->nodes[id], all->nodes[other], (long)(id * other) - 50);
    for (size_t i = 0; i < all->count; i++) all->nodes[i]->seen = 0;
    total = depth_first(all->nodes[id], total, 0, &deepest);
    for (long* at = squares; at != end_of_squares; at++) *at += (at - squares) * (long)id;
    mixed.b[id % 3] -= squares[id % 8];
    mixed.c += 0.5L;
    shadowib_portable_site();
  }
  printf("%s %ld %ld %ld %ld %ld %.2Lf %s", argc > 0 && strlen(argv[0]) > 0 ? "graph" : "", total, deepest,
         mixed.b[0], mixed.b[1], squares[7], mixed.c, mixed.where);
  printf(" %d %d", kinds[0], kinds[1]);
  const struct node* last = all->nodes[all->count - 1];
  printf(" %s %s %g %d %u %d\n", last->name, last->kind, last->mass, last->degree, last->u.mask, last->balance);
  return 0;
}
