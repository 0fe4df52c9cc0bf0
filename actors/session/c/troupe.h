/* Troupe for trainers in C and, through it, in other languages: the session of <troupe/session.hpp> with opaque
   handles and without exceptions.

   Every function that can fail returns TROUPE_OK (0) or another troupe_status. In that case it fills `error`, unless
   that is NULL; nothing else is changed. Pointers passed to a function need not outlive the call. A session belongs to
   one thread. Strings are UTF-8 and end with a zero byte.

     troupe_options* options = troupe_options_new();
     troupe_options_set(options, "lanes", "4", &error);
     troupe_options_add_parameter(options, "weight", shape, 2, TROUPE_F32, 0, &error);
     troupe_session_join(options, &session, &error);
     for (;;) {
       troupe_begin_step(session, learning_rate, &error);
       for (int i = 0; i < troupe_lane_count(session); ++i) {
         troupe_begin_lane(session, troupe_lane(session, i), &error);
         ... forward: troupe_before_use(p), then read troupe_parameter(p); backward: add to troupe_gradient(p), then
         troupe_gradient_ready(p)
         troupe_end_lane(session, loss, &error);
       }
       troupe_finish_step(session, NULL, 0, &outcome, &error);
     }
     troupe_leave(session, &error);
     troupe_session_free(session);
*/
#ifndef TROUPE_TROUPE_H
#define TROUPE_TROUPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change that a caller could notice, sizes of structs included. */
#define TROUPE_C_VERSION 8
/* The version that the library was built with. A program that loads the library while it runs compares it with
   TROUPE_C_VERSION first: with another one nothing below is safe to call. */
int troupe_c_version(void);

typedef enum troupe_status {
  TROUPE_OK = 0,
  TROUPE_INVALID_ARGUMENT = 1, /* a call out of turn, a wrong name, an impossible value */
  TROUPE_NOT_FOUND = 2, TROUPE_ALREADY_EXISTS = 3,
  TROUPE_UNAVAILABLE = 4, /* this build or this machine does not have it */
  TROUPE_IO = 5, TROUPE_CORRUPT = 6,
  TROUPE_MISMATCH = 7, /* ranks disagree */
  TROUPE_TIMEOUT = 8, TROUPE_PEER_LOST = 9, TROUPE_ABORTED = 10, TROUPE_STALE_EPOCH = 11,
  TROUPE_OUT_OF_MEMORY = 12, TROUPE_NUMERIC = 13, TROUPE_INTERNAL = 14
} troupe_status;

/* The message says what was expected, what was found and what to do next; a long message is cut. */
typedef struct troupe_error {
  troupe_status status;
  char message[1020];
} troupe_error;

/* Parameters use one of the first three; groups accept all. `..._LAST` is not a dtype: it makes the enum wide enough
   that any int a caller passes can be checked and refused. The other enums that callers pass do the same. */
typedef enum troupe_dtype {
  TROUPE_F32 = 1, TROUPE_F16 = 2, TROUPE_BF16 = 3, TROUPE_F64 = 4, TROUPE_I64 = 5, TROUPE_I32 = 6, TROUPE_U8 = 7, TROUPE_I16 = 8,
  TROUPE_I8 = 9, TROUPE_U64 = 10, TROUPE_U32 = 11, TROUPE_U16 = 12, TROUPE_BOOL = 13, TROUPE_DTYPE_LAST = 0x7fffffff
} troupe_dtype;

typedef struct troupe_options troupe_options;
typedef struct troupe_session troupe_session;
typedef struct troupe_group troupe_group;
typedef struct troupe_experts troupe_experts;

/* ---- Options: what all ranks of a job have in common, and where this rank keeps things. ---- */

troupe_options* troupe_options_new(void);
void troupe_options_free(troupe_options* options);

/* Sets an option by name; troupe_option_names() lists them. TROUPE_INVALID_ARGUMENT says what the value may be. */
troupe_status troupe_options_set(troupe_options* options, const char* name, const char* value, troupe_error* error);
/* One line per option, "name: what it is", for people. */
const char* troupe_option_names(void);

enum {
  TROUPE_NO_WEIGHT_DECAY = 1, TROUPE_SHARED_EMBEDDING = 2 /* gets its own bucket */,
  TROUPE_EXPERT = 4,           /* of this rank's experts, under a name that no other rank of group "ep" uses */
  TROUPE_COPY = 8,             /* another pipeline stage has it too, under this name, and counts it in norms */
  TROUPE_FROZEN = 16,          /* nothing steps it: it has no gradient and no optimizer state, but is saved */
  TROUPE_ANY_SHAPE = 32        /* a restore reads the common part of another shape; the rest is zero */
};
/* All ranks that keep the same part of the model add the same parameters in the same order, which should be that of
   forward; other stages, and other ranks' experts, have other names. They are numbered from 0. `shape` has `axes`
   extents; `flags` are bits of the enum above. */
troupe_status troupe_options_add_parameter(troupe_options* options, const char* name, const int64_t* shape, size_t axes,
                                           troupe_dtype dtype, uint32_t flags, troupe_error* error);
/* The unit of forward that reads the parameter, numbered from 0 without gaps: strategies that shard parameters or
   gradients (zero2, zero3, hsdp, hfsdp) gather and release them unit by unit. Without a unit, a parameter stays
   resident and may be read at any time. `parameter` is the number of an added parameter. */
troupe_status troupe_options_set_unit(troupe_options* options, uint32_t parameter, uint32_t unit, troupe_error* error);
/* For a bf16 parameter: "f8_e4m3" or "f8_e5m2". Its values are its fp32 masters rounded to blocks of 32 neighbouring
   elements in that dtype with one power of two each, and it is gathered as such blocks: 33 bytes instead of 64. */
troupe_status troupe_options_set_gather_dtype(troupe_options* options, uint32_t parameter, const char* dtype,
                                              troupe_error* error);
/* This rank, and how many the job has, as troupe_session_join() will find them in the process's environment: for
   options and parameters that differ between ranks. Either pointer may be NULL. */
troupe_status troupe_place(const troupe_options* options, int32_t* rank, int32_t* world_size, troupe_error* error);
/* For tensor parallelism: the parameter's shape is this rank's part of a tensor with the shape `global_shape`, and
   begins at `offset`; both have `axes` entries, as many as the parameter's shape. Otherwise all ranks of group "tp"
   keep the same values. */
troupe_status troupe_options_set_part(troupe_options* options, uint32_t parameter, const int64_t* global_shape,
                                      const int64_t* offset, size_t axes, troupe_error* error);
/* Each rank of the group, "tp" or "pp", keeps the whole parameter and adds only its own part of the gradient; the
   session sums the parts. All stages have the one of "pp", with TROUPE_COPY on all but the first. */
troupe_status troupe_options_set_also_sum(troupe_options* options, uint32_t parameter, const char* group,
                                          troupe_error* error);

/* How parameters are stepped: groups are numbered from 0, and setting an option of the next number adds a group. Its
   options are "learning-rate-factor" and those of the optimizer, from "optimizer" to "muon-scale"; what is not set has
   the optimizer's default. A parameter belongs to group 0 unless troupe_options_set_parameter_group() says otherwise.
   Where there are groups, the options of the same names that troupe_options_set() sets have no effect. */
troupe_status troupe_options_set_of_group(troupe_options* options, uint32_t group, const char* name, const char* value,
                                          troupe_error* error);
troupe_status troupe_options_set_parameter_group(troupe_options* options, uint32_t parameter, uint32_t group,
                                                 troupe_error* error);

/* A tensor of the trainer's own that is saved and restored with the parameters: an average of weights, the state of a
   random number generator. `memory` holds this rank's part, row by row; it stays alive as long as the session, and is
   not changed between troupe_save() or troupe_save_local() and the next troupe_begin_step(). `shape` is the part's,
   `global_shape` the whole tensor's, `offset` where the part begins; all have `axes` entries. `global_shape` and
   `offset` may both be NULL: then the part is the whole tensor. Ranks may add different tensors, but all parts together
   must make up whole tensors: of ranks with the same part one has `replica` 0, and the others have numbers above 0. On
   a GPU it is memory of the device. */
troupe_status troupe_options_add_tensor(troupe_options* options, const char* name, void* memory, troupe_dtype dtype,
                                        const int64_t* shape, const int64_t* global_shape, const int64_t* offset,
                                        size_t axes, int32_t replica, troupe_error* error);

/* Something that shapes the trainer's own course, for example an option of its command line or a hash of its data: the
   same names on all ranks. troupe_session_join() is TROUPE_MISMATCH on all ranks where a value differs, and names the
   first, with both values and ranks. Leave out what may differ, such as folders. */
troupe_status troupe_options_add_setting(troupe_options* options, const char* name, const char* value,
                                         troupe_error* error);

/* Cuts all ranks of the job into groups, for collectives of the trainer's own: part_of[r] is the number of the part
   that rank r is in, and `ranks` the size of the job. Parts are numbered from 0 without gaps; the members of a part
   are in the order of their ranks. The same on all ranks. With `ranks` 0 it is one group of all ranks, however many the
   job has then. `name` has letters, digits, '-' and '_'. The groups "tp", "pp", "cp" and "ep" need not be added:
   options such as "tensor-parallel" make them. */
troupe_status troupe_options_add_group(troupe_options* options, const char* name, const int32_t* part_of, size_t ranks,
                                       troupe_error* error);

typedef enum troupe_operation_kind {
  TROUPE_ALL_REDUCE = 1, TROUPE_REDUCE_SCATTER = 2, TROUPE_ALL_GATHER = 3, TROUPE_ALL_TO_ALL = 4, TROUPE_BROADCAST = 5,
  TROUPE_BARRIER = 6 /* not to be declared */, TROUPE_OPERATION_KIND_LAST = 0x7fffffff
} troupe_operation_kind;

typedef enum troupe_pass {
  TROUPE_FORWARD = 1,
  TROUPE_BACKWARD = 2,
  TROUPE_WEIGHTS = 3, /* of a backward in two passes, the one that adds to gradients; not for operations */
  TROUPE_PASS_LAST = 0x7fffffff
} troupe_pass;

#define TROUPE_NO_UNIT UINT32_MAX

/* An operation that the trainer will post itself, in every microbatch of every lane. */
typedef struct troupe_operation {
  const char* group; /* "tp", "cp" or "ep" */
  troupe_operation_kind kind;
  troupe_dtype dtype;
  /* Elements that each member puts in, in group order, one entry for each of `members`: of a reduce_scatter and an
     all_to_all for all members together, of a broadcast if it is the root. */
  const int64_t* counts;
  size_t members;
  /* 1: the counts are upper bounds, because the actual ones depend on data. An all_gather or all_to_all of integers
     with fixed counts, declared earlier in the lane, tells members the actual counts. Otherwise 0. */
  int32_t bounded;
  troupe_pass pass;
  uint32_t unit; /* the unit it belongs to; TROUPE_NO_UNIT if no parameter has a unit */
} troupe_operation;

/* Declares an operation; those of one unit and pass in their order, the same on all ranks, not in a pipeline. The
   session holds the trainer to them: on a group with declared operations, other posts in a lane are refused, and a
   lane cannot end before all were posted. Where there are units each is posted while its unit is acquired. Groups
   without declared operations, and posts outside of lanes, are not restricted. troupe_session_join() refuses what
   does not fit the job. */
troupe_status troupe_options_add_operation(troupe_options* options, const troupe_operation* operation,
                                           troupe_error* error);

/* A layer of experts, which the ranks of group "ep" share (option "expert-parallel"), each its own consecutive ones.
   Set all members that are not used to 0. Experts' parameters have the flag TROUPE_EXPERT. */
typedef struct troupe_expert_layer {
  size_t experts;         /* on all ranks together; 0: this layer of the model has none */
  size_t choices;         /* experts of each token */
  size_t tokens;          /* most tokens of a rank in a microbatch */
  double capacity_factor; /* choices beyond ceil(tokens * choices / experts * factor) of an expert are dropped; or 0 */
  int64_t most_rows;      /* that come to a rank's experts at once; more refuse the step; 0: all that can come */
  size_t exchanges;       /* microbatches that are on their way at once; 0: those of a step */
  double bias_rate;       /* by how much a committed step moves the router's biases; scores are sigmoids then; or 0 */
  int32_t after_choice;   /* 1: without biases, scores are a softmax over the chosen experts only; 0: over all */
} troupe_expert_layer;
/* Layers are numbered from 0 in the order in which they are added, the same on all ranks. */
troupe_status troupe_options_add_experts(troupe_options* options, const troupe_expert_layer* layer,
                                         troupe_error* error);

/* For a trainer that begins a lane before it has ended the previous one, such as a pipeline stage: appends to the list
   of what it does in a step. A pass goes through the units from `first_unit` up to, but without, `end_unit`, in
   backward from the last one down, for the lane with the index `round` among the rank's lanes. All ranks that keep the
   same stage give the same list, with as many rounds as the rank with the most lanes has. Where there are units the
   trainer begins each pass with troupe_begin_pass(); elsewhere the list has no effect. */
troupe_status troupe_options_add_pass(troupe_options* options, troupe_pass kind, int32_t round, int32_t first_unit,
                                      int32_t end_unit, troupe_error* error);

/* ---- A session. ---- */

/* Joins the job that the process's environment names (troupe launch, torchrun, Slurm, Open MPI, hydra; otherwise
   one rank alone). Returns when all ranks are there and agree. Call it early in main(): it blocks SIGUSR1 for all threads that
   start later. */
troupe_status troupe_session_join(const troupe_options* options, troupe_session** session, troupe_error* error);
/* After a call has failed with `error`, where the option "stays" was set: if that says that another rank was lost, and
   `troupe launch` has put another process in its place, joins the job again, in this process. Then begin as after
   troupe_session_join(): restore, and take the next step; whatever was asked of the session before, groups and memory
   included, may not be used any more. Otherwise the session is freed and becomes NULL, and `error` stays as it was. */
troupe_status troupe_session_join_again(const troupe_options* options, troupe_session** session, troupe_error* error);
/* Ends the session in any state; NULL is allowed. */
void troupe_session_free(troupe_session* session);

/* -1, or 0 for counts, if the session is NULL. */
int32_t troupe_rank(const troupe_session* session);
int32_t troupe_world_size(const troupe_session* session);
/* The lanes that this rank plays, in order. */
int32_t troupe_lane_count(const troupe_session* session);
/* -1 if there is no such lane. */
int32_t troupe_lane(const troupe_session* session, int32_t index);
/* The step that is being computed, or the next one. */
int64_t troupe_next_step(const troupe_session* session);
uint32_t troupe_parameter_count(const troupe_session* session);
/* Number of units that parameters were given, where the strategy shards parameters or gradients; otherwise 0. */
uint32_t troupe_unit_count(const troupe_session* session);
/* Sets a parameter's initial values, before the first step and the first save; after troupe_restore() it replaces what
   was loaded. Calls `fill` with the first element of the range that this rank keeps, and the memory for the range's
   `count` values, in f32 whatever the parameter's dtype. An element must have the same value on every rank that asks
   for it. Not called where this rank keeps none. Needed where the parameter has a unit, allowed anywhere. */
troupe_status troupe_write_parameter(troupe_session* session, uint32_t parameter,
                                     void (*fill)(int64_t first, float* values, size_t count, void* context),
                                     void* context, troupe_error* error);

/* What the optimizer keeps of a parameter, in f32, between steps: `state` is "exp_avg", "exp_avg_sq" or
   "momentum_buffer", whichever its optimizer has. Calls `take` with the first element of the range that this rank's
   optimizer steps, and the range's `count` values. Not called where this rank steps none of it. */
troupe_status troupe_read_state(troupe_session* session, uint32_t parameter, const char* state,
                                void (*take)(int64_t first, const float* values, size_t count, void* context),
                                void* context, troupe_error* error);
/* Replaces it before the first step and the first save; `fill` is as for troupe_write_parameter(). */
troupe_status troupe_write_state(troupe_session* session, uint32_t parameter, const char* state,
                                 void (*fill)(int64_t first, float* values, size_t count, void* context),
                                 void* context, troupe_error* error);
/* The steps that the optimizer has taken, for each of all `count` parameters; a frozen one misses none. */
troupe_status troupe_steps_taken(troupe_session* session, int64_t* steps, size_t count, troupe_error* error);
/* Makes it go on as if it had taken these, before the first step and the first save: the session's next step comes
   after the most of them. By all ranks alike. */
troupe_status troupe_write_steps_taken(troupe_session* session, const int64_t* steps, size_t count,
                                       troupe_error* error);

/* ---- A step. ---- */

troupe_status troupe_begin_step(troupe_session* session, double learning_rate, troupe_error* error);
troupe_status troupe_begin_lane(troupe_session* session, int32_t lane, troupe_error* error);
/* What the trainer multiplies the losses of the step by before backward (option "loss-scaling"), otherwise 1. The loss
   given to troupe_end_lane(), and what an outcome says about gradients, is without it. Ask for it in every step:
   troupe_finish_step() and a restore change it. */
double troupe_loss_scale(const troupe_session* session);
/* From 0, in order; a lane begins with microbatch 0. */
troupe_status troupe_begin_microbatch(troupe_session* session, int32_t index, troupe_error* error);
/* Instead of troupe_begin_lane() and troupe_begin_backward() where troupe_options_add_pass() was called and there are
   units: what follows belongs to this pass, counted from 0, until the next one begins. Passes come in the order of the
   list, without those of rounds in which the rank has no lane; troupe_end_lane() comes after the last pass of each
   lane. */
troupe_status troupe_begin_pass(troupe_session* session, size_t pass, troupe_error* error);
/* Waits until the unit's parameters may be read and, in backward, its gradients written; fetch their
   memory again afterwards. Forward acquires units in ascending order, backward in descending order, unless the options
   "forward-order" and "backward-order" say otherwise; acquiring a unit releases the previous one. Where the strategy
   keeps all parameters it is troupe_before_use() of each of the unit's, in any order, and troupe_release() does
   nothing. */
troupe_status troupe_acquire(troupe_session* session, uint32_t unit, troupe_error* error);
/* The unit is no longer read, and its gradients of this lane are complete. */
troupe_status troupe_release(troupe_session* session, uint32_t unit, troupe_error* error);
/* Forward of the lane has ended. Needed where there are units, allowed anywhere. */
troupe_status troupe_begin_backward(troupe_session* session, troupe_error* error);
/* Waits until the parameter holds the last step; needed before its first read in a step. Acquires the parameter's
   unit, if it has one. */
troupe_status troupe_before_use(troupe_session* session, uint32_t parameter, troupe_error* error);
/* The parameter's values in host memory: written before the first step (the same on every rank; sharded ones by
   troupe_write_parameter()), read after troupe_before_use(), or while its unit is acquired. TROUPE_UNAVAILABLE on
   devices whose memory the host cannot reach. */
troupe_status troupe_parameter(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                               troupe_error* error);
/* Where to add the current lane's gradient; fetch it anew in every lane. It is in f32, unless the option
   "gradients-in-parameter-dtype" is true. Where there are units, that of a parameter with a unit is written, and
   troupe_gradient_ready() called, while the unit is acquired in backward. */
troupe_status troupe_gradient(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                              troupe_error* error);
/* The number of ranks whose lanes contribute to this parameter's gradient here, per round: 1, or for an expert's
   parameter the size of group "ep"; times the pieces of a lane that a rank computes (option "context-pieces"). */
troupe_status troupe_sources(troupe_session* session, uint32_t parameter, int32_t* count, troupe_error* error);
/* Like troupe_gradient(), for tokens of the member i of group "ep", or of its piece p of P: source i * P + p. Each
   source has its own gradient memory; call troupe_gradient_ready() when all are added. */
troupe_status troupe_gradient_of_source(troupe_session* session, uint32_t parameter, int32_t source, void** data,
                                        size_t* bytes, troupe_error* error);
/* The same memory for kernels, wherever it is. */
troupe_status troupe_parameter_memory(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                                      troupe_error* error);
troupe_status troupe_gradient_memory(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                                     troupe_error* error);
troupe_status troupe_gradient_memory_of_source(troupe_session* session, uint32_t parameter, int32_t source, void** data,
                                               size_t* bytes, troupe_error* error);
/* For trainers that enqueue their passes: calls `launch` once, immediately, with the stream (a cudaStream_t) that the
   session orders its updates after, and with the device current. `launch` returns a status (a cudaError_t), 0 for
   success. First call it before the first step. TROUPE_UNAVAILABLE on devices without native streams, and then
   nothing changes. */
troupe_status troupe_on_compute_stream(troupe_session* session, int (*launch)(void* stream, void* context),
                                       void* context, troupe_error* error);
/* The parameter's gradient of this microbatch has been added. */
troupe_status troupe_gradient_ready(troupe_session* session, uint32_t parameter, troupe_error* error);
/* The lane counts as one of the job's lanes: `loss` is its mean, and so is what it adds to gradients, for each
   microbatch. */
troupe_status troupe_end_lane(troupe_session* session, double loss, troupe_error* error);
/* `loss` and what all microbatches of the lane have added to gradients are sums over `weight` targets, such as the
   tokens that a language model learns; those of the step are divided by the exact sum of all lanes' weights, so that
   each target counts alike wherever it is. A lane without targets has weight 0; a step without any is not committed.
   Lanes are ended in this way in all of a step or in none. The average is multiplied by option "loss-divisor": what
   the trainer has already divided losses and their gradients by, the same in every lane. */
troupe_status troupe_end_weighted_lane(troupe_session* session, double loss, double weight, troupe_error* error);

/* JOIN comes from the runtime: other processes stand by to join. Once a step has been saved, the next
   troupe_begin_step() ends in TROUPE_PEER_LOST, and troupe_session_join_again() goes on with them. */
enum { TROUPE_WISH_SAVE = 1, TROUPE_WISH_LEAVE = 2, TROUPE_WISH_JOIN = 4 };

typedef struct troupe_step_outcome {
  int64_t step;
  int32_t committed;     /* 0: parameters are as before the step, `reason` says why */
  uint32_t wishes;       /* of all ranks */
  double loss;           /* the mean over all lanes of the job, or over the weights that they were given */
  double weight;         /* of all lanes: the sum of those that were given, or their number */
  double gradient_norm;  /* before clipping */
  double clip_factor;
  double seconds;        /* of the step, on this rank */
  double waited_seconds; /* of these, spent by the trainer waiting for Troupe */
  double loss_scale;     /* of this step */
  int64_t nonfinite_gradients; /* elements that are NaN or Inf; above 0 the step is not committed */
  char reason[256];
} troupe_step_outcome;

/* A `refusal` that is neither NULL nor empty asks that no rank commits the step. `outcome` may be NULL. */
troupe_status troupe_finish_step(troupe_session* session, const char* refusal, uint32_t wishes,
                                 troupe_step_outcome* outcome, troupe_error* error);
/* Waits until every parameter kept here holds the last step: before reading it between steps, or at the end. */
troupe_status troupe_publish_all(troupe_session* session, troupe_error* error);
/* Between steps: until troupe_end_evaluation(), which comes before the next step, parameters may be read with
   troupe_before_use() and troupe_acquire(), in any order and any number of times. Where parameters are sharded, all
   ranks do so alike, unit by unit. */
troupe_status troupe_begin_evaluation(troupe_session* session, troupe_error* error);
troupe_status troupe_end_evaluation(troupe_session* session, troupe_error* error);
/* Before the first step, instead of the options "forward-order" and "backward-order": the trainer goes once through a
   microbatch as in a step, but without troupe_begin_lane() and troupe_end_lane(); steps then follow the order in
   which it used units. Gradients have no effect. All ranks call it alike; TROUPE_MISMATCH names the first difference,
   and the job ends. */
troupe_status troupe_begin_learning(troupe_session* session, troupe_error* error);
troupe_status troupe_end_learning(troupe_session* session, troupe_error* error);

/* ---- Groups: collectives of the trainer's own, in the middle of forward and backward or anywhere else. ---- */

/* This rank's part of the group of that name: one that was added, or "tp", "pp", "cp" or "ep" where the job has more
   than one rank along that axis. The session owns it: use it on the session's thread, until troupe_leave(). An unknown
   name is TROUPE_INVALID_ARGUMENT, which lists those that exist. */
troupe_status troupe_group_of(troupe_session* session, const char* name, troupe_group** group, troupe_error* error);
/* 0 if the group is NULL. */
int32_t troupe_group_size(const troupe_group* group);
/* This rank's place among the members, from 0; -1 if the group is NULL. */
int32_t troupe_group_index(const troupe_group* group);
/* The rank of the member at that place; -1 if there is none. */
int32_t troupe_group_member(const troupe_group* group, int32_t index);

/* All members post the same operations in the same order, at the same places among their calls of the session. An
   operation runs after what has been enqueued on the compute stream (troupe_on_compute_stream()), if the trainer uses
   it. Its memory must stay alive, and untouched, until troupe_group_wait() returns, or with a compute stream until what
   is enqueued there after that call runs. On the device "host" this must be host memory; on a GPU, device memory, such
   as that of troupe_parameter_memory().

   Counts are elements of `dtype`, and may be 0; memory may be NULL where its count is 0. Arrays of counts have one
   entry per member, in group order, and `members` says how many they have: troupe_group_size(). Sums of f16 and bf16
   are as in the session's own collectives. `posted`, which may be NULL, is the operation's number for
   troupe_group_wait().

   TROUPE_INVALID_ARGUMENT says what cannot be right, and nothing is posted. An operation that fails later is this
   rank's failure, which ends the session for all ranks and names the operation. */

typedef enum troupe_reduction { /* TROUPE_AVERAGE takes floating-point values only; a session has the first four */
  TROUPE_SUM = 1, TROUPE_AVERAGE = 2, TROUPE_MIN = 3, TROUPE_MAX = 4, TROUPE_PRODUCT = 5, TROUPE_BIT_AND = 6,
  TROUPE_BIT_OR = 7, TROUPE_BIT_XOR = 8, TROUPE_REDUCTION_LAST = 0x7fffffff
} troupe_reduction;

/* In place: all members get the reduced `count` values. */
troupe_status troupe_group_all_reduce(troupe_group* group, void* values, size_t count, troupe_dtype dtype,
                                      troupe_reduction reduction, uint64_t* posted, troupe_error* error);
/* `input` has counts[i] elements for member i, one part after the other; member i gets its part, reduced, in
   `output`. */
troupe_status troupe_group_reduce_scatter(troupe_group* group, const void* input, void* output, const size_t* counts,
                                          size_t members, troupe_dtype dtype, troupe_reduction reduction,
                                          uint64_t* posted, troupe_error* error);
/* Member i gives the counts[i] elements of its `input`; `output` gets those of all members, in group order. */
troupe_status troupe_group_all_gather(troupe_group* group, const void* input, void* output, const size_t* counts,
                                      size_t members, troupe_dtype dtype, uint64_t* posted, troupe_error* error);
/* Gives sent[i] elements of `input` to member i and puts taken[i] from it in `output`, both in group order. Lists of
   rows, which C++ has (TrainerGroup::Rows), are not here: copy rows together first. */
troupe_status troupe_group_all_to_all(troupe_group* group, const void* input, const size_t* sent, void* output,
                                      const size_t* taken, size_t members, troupe_dtype dtype, uint64_t* posted,
                                      troupe_error* error);
/* In place: gives the `count` values of the member at the place `root` to all. */
troupe_status troupe_group_broadcast(troupe_group* group, void* values, size_t count, troupe_dtype dtype, int32_t root,
                                     uint64_t* posted, troupe_error* error);
/* To the member at the place `to`, which receives as many elements. A send may last until its receive has begun. */
troupe_status troupe_group_send(troupe_group* group, const void* values, size_t count, troupe_dtype dtype, int32_t to,
                                uint64_t* posted, troupe_error* error);
troupe_status troupe_group_receive(troupe_group* group, void* values, size_t count, troupe_dtype dtype, int32_t from,
                                   uint64_t* posted, troupe_error* error);
/* Waits for the operation with that number and all that were posted on the group before it. With a compute stream, work
   enqueued there afterwards waits, not the calling thread. */
troupe_status troupe_group_wait(troupe_group* group, uint64_t posted, troupe_error* error);

/* ---- Experts: as ExpertLayer of <troupe/trainer_group.hpp>. ---- */

/* The session owns it. Then what its router has: the biases, and how often each expert was chosen, and had no room, by
   all ranks' tokens since the run began. Each has `experts` elements and lives as long as the session, but biases are
   NULL without a bias rate. They change in troupe_finish_step(), and are saved and restored. Pointers may be NULL. */
troupe_status troupe_experts_of(troupe_session* session, uint32_t layer, troupe_experts** experts, troupe_error* error);
troupe_status troupe_experts_state(troupe_experts* experts, const float** biases, const int64_t** chosen,
                                   const int64_t** dropped, troupe_error* error);
/* The rows `first` to `first + count` of those received come from `source`, for the expert `expert` here. */
typedef struct troupe_rows { int32_t expert, source; int64_t first, count; } troupe_rows;
/* Where N tokens go, K choices each. Slots, S of them, are the choices that are kept, by expert, then by token. */
typedef struct troupe_routing {
  const int32_t* experts; const float* weights; /* (N, K) each, best first */
  const int64_t *choice_of_slot, *slot_of_choice; /* (S): token * K + choice; (N, K), -1: its expert had no room */
  const troupe_rows* products;                    /* by expert, then by source */
  size_t slots, received, product_count;
} troupe_routing;
/* In the order of the calls of a microbatch, the same on all ranks of group "ep"; `logits` (N, experts) are in host
   memory. In backward, with gradients, dispatch and combine again; the latter may be left out. */
troupe_status troupe_experts_route(troupe_experts* experts, const float* logits, size_t tokens,
                                   const troupe_routing** routing, troupe_error* error);
troupe_status troupe_experts_dispatch(troupe_experts* experts, const troupe_routing* routing, const void* slots,
                                      void* rows, size_t row_bytes, troupe_error* error);
troupe_status troupe_experts_combine(troupe_experts* experts, const troupe_routing* routing, const void* rows,
                                     void* slots, size_t row_bytes, troupe_error* error);
/* Adds to d_logits the gradient through the weights, whose own is d_weights (N, K). */
troupe_status troupe_experts_backward(troupe_experts* experts, const troupe_routing* routing, const float* logits,
                                      const float* d_weights, float* d_logits, troupe_error* error);
/* After its last use; NULL is allowed. The session frees what is left. */
void troupe_routing_free(troupe_experts* experts, const troupe_routing* routing);

/* ---- Checkpoints, in the directory of the option "checkpoints"; by all ranks alike. ---- */

/* Saves the state after the last step in the background. `common`, which may be NULL, is JSON that a restore returns;
   its numbers are whole, so write fractions as strings. `sequence`, which may be NULL, identifies the result. */
troupe_status troupe_save(troupe_session* session, const char* common, uint64_t* sequence, troupe_error* error);

typedef struct troupe_save_result {
  uint64_t sequence;
  int64_t step; /* completed steps, committed or not */
  uint64_t bytes;
  int32_t committed; /* 0: `message` says why not; otherwise it is a warning, or empty */
  char name[64];
  char message[1020];
} troupe_save_result;

/* The next finished save, if there is one: `found` is 0 or 1. Never waits. */
troupe_status troupe_take_save(troupe_session* session, int32_t* found, troupe_save_result* result, troupe_error* error);
/* Waits until every save that was begun has ended. */
troupe_status troupe_wait_saves(troupe_session* session, troupe_error* error);
/* Like these three, into the directory of the option "local-checkpoints": every rank's state on its own node, and copies
   of it at the other ranks of its clique (option "replication-factor"). A save counts when all of them are there; then
   older ones are removed. */
troupe_status troupe_save_local(troupe_session* session, const char* common, uint64_t* sequence, troupe_error* error);
troupe_status troupe_take_local_save(troupe_session* session, int32_t* found, troupe_save_result* result,
                                     troupe_error* error);
troupe_status troupe_wait_local_saves(troupe_session* session, troupe_error* error);

typedef struct troupe_restored {
  int32_t found;    /* 0: there is no checkpoint */
  int32_t is_local; /* 1: it is a local save */
  int64_t step;     /* the next one */
  char name[64];
  char passed_over[1020]; /* newer checkpoints and local saves that could not be used, and why; a line for each */
} troupe_restored;

/* Right after troupe_session_join() and troupe_session_join_again(), by all ranks alike: where the job has gone on in a
   new epoch, the newest step that the ranks have in memory, together. If `found` is 1 the session goes on at `step`:
   neither write first values nor restore. Otherwise do, as in a first epoch. */
troupe_status troupe_recover(troupe_session* session, troupe_restored* restored, troupe_error* error);

/* Before the first step. `name` is that of a checkpoint, or NULL for the newest complete one. Without a name, a local
   save at least as new comes first, if the same job made it and the ranks' copies are still complete. */
troupe_status troupe_restore(troupe_session* session, const char* name, troupe_restored* restored, troupe_error* error);

/* Set all members that are not used to 0: troupe_restore_options options = {0}. */
typedef struct troupe_restore_options {
  const char* directory;  /* of checkpoints; NULL: that of the option "checkpoints" */
  const char* name;       /* as troupe_restore() takes it */
  int32_t weights_only;   /* 1: moments and counters of the optimizer start anew, and so do the steps */
  const char* strictness; /* what to do about tensors that only the job or only the checkpoint has: raise_unexpected (as
                             NULL), raise_all, log_unexpected, log_all, ignore_all or assume_ok_unexpected. Tensors that
                             the checkpoint lacks keep their values. */
} troupe_restore_options;

/* Like troupe_restore(), with more to choose; `options` may be NULL. Local saves are considered only without `directory`,
   `name` and `weights_only`. */
troupe_status troupe_restore_with(troupe_session* session, const troupe_restore_options* options,
                                  troupe_restored* restored, troupe_error* error);
/* What was given to troupe_save() for the restored checkpoint: copies at most `capacity` bytes, including the zero
   byte, into `text`, and returns the number of bytes that all of it takes, including the zero byte. */
size_t troupe_restored_common(const troupe_session* session, char* text, size_t capacity);

/* ---- The end. ---- */

/* Leaves normally, when all ranks do. */
troupe_status troupe_leave(troupe_session* session, troupe_error* error);
/* This rank gives up, and every other rank is told why. `error` gets the job's first failure. */
void troupe_abandon(troupe_session* session, const char* reason, troupe_error* error);

#ifdef __cplusplus
}
#endif

#endif
