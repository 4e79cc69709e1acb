/* The common parts of the scenarios of hazards: the backend's control, memory by places, requests between them. */
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#include "ib2tcp/testing/wayward/control.h"
#include "scenario.h"

#define COMMAND(field, value) command(offsetof(struct wayward_control, field), value)
#define ASK(field) ask(offsetof(struct wayward_control, field))
/* `otherwise` is what has gone wrong if not. */
#define HOLDS(condition, otherwise) holds((condition) != 0, otherwise, __FILE__, __LINE__)

enum { kBytes = 64 };

void holds(int condition, const char* otherwise, const char* file, int line);
void command(size_t offset, uint32_t value);
uint32_t ask(size_t offset);

/* From now on nobody hears what has run. */
void withhold_answers(void);
/* A checkpoint that hears what is withheld when it has asked often. Returns in the restarted process only. */
void checkpoint_and_kill_answering_late(void);

/* Everybody may do everything. */
void make_free_pair(void);
/* Another, made and connected as A and B are. */
extern struct ibv_qp *c, *d;
void make_second_pair(void);

/* Places in memory. */
volatile char* place(int n);
void fill(int n, int c);
void await_char(int n, int c); /* at its end */

/* Requests between places. */
void take_in(struct ibv_qp* qp, uint64_t id, int to);
struct ibv_send_wr request(enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge* from, int to, unsigned flags);
void give(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t id, int from, int to, unsigned flags);
void write_to(struct ibv_qp* qp, uint64_t id, int from, int to, unsigned flags);
