/* Collectives and messages between processes, on memory of the caller's, without a session: what the package for
   Python puts below torch.distributed. It belongs to libtroupe.so as troupe.h does, which says how functions fail,
   but is not installed. Members are numbered from 0 in the order of the group. All functions may be called from any
   thread. */
#ifndef TROUPE_PEERS_H
#define TROUPE_PEERS_H

#include "actors/session/c/troupe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct troupe_peers troupe_peers;
typedef struct troupe_message troupe_message;

/* Where members find each other. Only troupe_peers_connect() calls it, from its own thread. */
typedef struct troupe_store {
  void* context;
  /* 0 if the value is stored under the key, which nobody has set before. */
  int32_t (*set)(void* context, const char* key, const void* value, size_t bytes);
  /* Waits until the key is set, copies the value and returns its length. -1: nobody set it in time. -2: another
     failure, or it does not fit. */
  int64_t (*get)(void* context, const char* key, int64_t milliseconds, void* value, size_t capacity);
} troupe_store;

typedef struct troupe_peers_options {
  const char* name;       /* of the group, with letters, digits, '-' and '_'; the same on all members */
  const int32_t* ranks;   /* of the members, for errors; all different */
  size_t members;
  size_t index;           /* of this one */
  const char* address;    /* this host, as members on others reach it */
  int64_t milliseconds;   /* to find all members */
  troupe_store store;
  const troupe_peers* beside; /* an earlier group of this process, whose threads are shared, or NULL */
} troupe_peers_options;

/* All members call it; it returns when all have joined. */
troupe_status troupe_peers_connect(const troupe_peers_options* options, troupe_peers** peers, troupe_error* error);
/* Ends what still runs. Messages of the group are freed before. NULL is allowed. */
void troupe_peers_free(troupe_peers* peers);

typedef struct troupe_piece {
  void* data;
  size_t count;
} troupe_piece;

/* A collective, as in the table of gpu/collective/group.hpp. Counts are elements of `dtype`; arrays of counts have one
   entry per member, or are NULL where a kind has none. */
typedef struct troupe_collective {
  troupe_operation_kind kind;
  troupe_dtype dtype;
  troupe_reduction reduction;
  int32_t root;                 /* of a broadcast */
  const troupe_piece* inputs;   /* one part after another */
  const troupe_piece* outputs;  /* the same; an all_reduce has inputs alone, and changes them */
  size_t input_pieces;
  size_t output_pieces;
  const size_t* input_counts;
  const size_t* output_counts;
  int64_t milliseconds;         /* from when it starts; when they have passed nothing more works */
} troupe_collective;

/* Runs it in this thread, after those that were posted before; or, unless `posted` is NULL, posts it, and its memory
   stays alive until it has ended. Numbers begin with 1. After a failure other than TROUPE_INVALID_ARGUMENT every later
   operation fails with the same status. */
troupe_status troupe_peers_run(troupe_peers* peers, const troupe_collective* collective, uint64_t* posted,
                               troupe_error* error);
/* Waits until the posted collective has ended; TROUPE_TIMEOUT after so long, while it goes on. */
troupe_status troupe_peers_wait(troupe_peers* peers, uint64_t posted, int64_t milliseconds, troupe_error* error);
/* Those up to this number have ended, well or not. */
uint64_t troupe_peers_completed(const troupe_peers* peers);

#define TROUPE_ANY_MEMBER (-1)
/* Messages of one member, tag and size arrive in order; a receive of another size than the message's waits for another
   one. `from` may be TROUPE_ANY_MEMBER.
   The memory stays alive until troupe_message_wait() has returned; then, or never, the message is freed. */
troupe_status troupe_peers_send(troupe_peers* peers, const void* data, size_t bytes, int32_t to, uint32_t tag,
                                troupe_message** message, troupe_error* error);
troupe_status troupe_peers_receive(troupe_peers* peers, void* data, size_t bytes, int32_t from, uint32_t tag,
                                   troupe_message** message, troupe_error* error);
/* `from`, which may be NULL, is the member at the other side. The first call decides; later ones repeat its result. */
troupe_status troupe_message_wait(troupe_message* message, int64_t milliseconds, int32_t* from, troupe_error* error);
void troupe_message_free(troupe_message* message);

/* What runs and what comes later ends with this reason. */
void troupe_peers_abort(troupe_peers* peers, const char* reason);

#ifdef __cplusplus
}
#endif

#endif
