/* The orders of a test to the wayward backend (wayward.cc): a file, named by SHADOWIB_WAYWARD, that the backend maps
 * and the test writes into. A written order has taken effect when the call returns; nothing depends on when anybody
 * looks. For C and C++; test drivers in other languages know the offsets.
 *
 * The first part is read when the backend is loaded, which a restart does again. The second is of the life of one
 * loaded backend: a fresh one withholds nothing. */
#pragma once

#include <stdint.h>

struct wayward_control {
  /* For a backend to come. */
  uint32_t device;       /* 1: it plays a device: completions alone tell what has run, and it knows of no pause */
  uint32_t first_number; /* of queue pairs, keys and shared queues, which are given in order; 0: 0x1000 */
  uint32_t begins_with;  /* 1: with posts withheld */
  uint32_t spare;

  /* For the one that runs. 1, or the number of the one queue pair that it is of: until told otherwise, or for as long
   * as `patience` lasts. */
  uint32_t hold_sends;            /* completions of send requests */
  uint32_t hold_receives;         /* completions of receives */
  uint32_t hold_acknowledgements; /* what has run is not told except by completions */
  uint32_t hold_posts;            /* send requests are taken and go no further */
  uint32_t patience;              /* polls, of whichever queue, after which they are let go; 0: no end to it */
  uint32_t patience_with_posts;   /* the same for posts, which `patience` does not concern */
  uint32_t newest_first;   /* 1: of the completions of several queue pairs, those of the highest number first */
  uint32_t lose_datagrams; /* how many more are lost on their way; they complete as if they had arrived */
  uint32_t place_late;     /* 1: writes complete before they are made: at the next loopback, or request behind */
  uint32_t lose_peer;      /* polls, after which withheld posts end as if the peer had not answered for long */
  uint32_t stay_inside; /* a post that is under way when threads are stopped stays: 1: half a second, 2: until it is
                           stopped */

  /* The reports of the backend. */
  uint32_t paused;         /* 1: threads are being stopped, or stand */
  uint32_t inside;         /* 1: such a post is under way */
  uint32_t stopped_inside; /* 1: a thread was stopped there */
  uint32_t withheld;       /* completions and requests withheld at the moment */
  uint32_t polls;          /* so far */
};
