#include "actors/session/c/peers.h"

#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/session/c/calls.hpp"
#include "actors/shell/rank_start.hpp"
#include "actors/world/environment.hpp"
#include "actors/world/host_identity.hpp"
#include "actors/world/token_file.hpp"
#include "gpu/collective/flight_recorder.hpp"
#include "gpu/collective/peers.hpp"
#include "posix/authentication.hpp"

using troupe::actors::c::call;
using troupe::actors::c::dtype_of;
using troupe::actors::c::missing;
using troupe::core::DType;
using troupe::core::Errc;
using troupe::core::fail;
using troupe::core::Result;
using troupe::gpu::BufferView;
using troupe::gpu::OperationKind;
using troupe::gpu::Peers;
using troupe::gpu::ReduceOp;

/// What troupe_peers stands for.
struct troupe_peers {
  std::unique_ptr<Peers> peers;
};

/// What troupe_message stands for.
struct troupe_message {
  std::unique_ptr<troupe::gpu::PostedTransfer> transfer;  ///< none: there was nothing to send
  std::string what;                                       ///< for errors
  std::byte nothing{};                                    ///< is sent where the message is empty
  std::mutex mutex;                                       ///< guards what is below, and the transfer
  std::optional<Result<int>> over;
};

namespace {

std::chrono::nanoseconds limit_of(std::int64_t milliseconds) {
  // A century is within the range of nanoseconds.
  constexpr std::int64_t kMost = std::int64_t{100} * 365 * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::clamp<std::int64_t>(milliseconds, 1, kMost));
}

/// TROUPE_JOB_TOKEN, or what TROUPE_JOB_TOKEN_FILE names. Ranks that meet over their own store may have
/// neither.
Result<std::optional<troupe::posix::JobToken>> key_of_job() {
  const auto variables = troupe::actors::process_variables();
  if (const auto text = variables("TROUPE_JOB_TOKEN"); text && !text->empty())
    return std::optional(TRY(troupe::actors::token_from_hex(*text)));
  if (const auto file = variables("TROUPE_JOB_TOKEN_FILE"); file && !file->empty())
    return std::optional(TRY(troupe::actors::token_from_file(*file)));
  return std::optional<troupe::posix::JobToken>();
}

/// TROUPE_PEERS_OVER, which is for measurements and tests.
Result<bool> goes_only_over_tcp() {
  const auto over = troupe::actors::process_variables()("TROUPE_PEERS_OVER").value_or("");
  if (over.empty() || over == "automatic") return false;
  if (over == "tcp") return true;
  return fail(Errc::invalid_argument, "TROUPE_PEERS_OVER is '{}'; expected automatic or tcp", over);
}

/// The record of a process whose first group this is. Groups work as well without.
std::shared_ptr<troupe::gpu::FlightRecorder> recorder_of(const troupe::gpu::GroupOptions& group) {
  auto environment = troupe::actors::detect_environment(troupe::actors::process_variables());
  if (!environment) return nullptr;
  environment->rank = group.self;
  return troupe::actors::open_flight_record(*environment).value_or(nullptr);
}

class CallersStore final : public troupe::gpu::Rendezvous {
 public:
  explicit CallersStore(const troupe_store& store) : store_(store) {}

  Result<void> set(const std::string& key, const std::string& value) override {
    if (store_.set(store_.context, key.c_str(), value.data(), value.size()) == 0) return {};
    return fail(Errc::unavailable, "the store does not take the key '{}'; look at the process that serves it",
                key);
  }

  Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override {
    std::string value(std::size_t{64} << 10, '\0');
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(deadline).count();
    const auto bytes = store_.get(store_.context, key.c_str(), limit, value.data(), value.size());
    if (bytes == -1)
      return fail(Errc::timeout,
                  "nobody set the key '{}' in the store within {} ms; look at the ranks that did not start",
                  key, limit);
    if (bytes < 0 || static_cast<std::size_t>(bytes) > value.size())
      return fail(Errc::unavailable,
                  "the store does not give the key '{}'; look at the process that serves it", key);
    value.resize(static_cast<std::size_t>(bytes));
    return value;
  }

 private:
  troupe_store store_;
};

Result<OperationKind> kind_of(troupe_operation_kind kind) {
  switch (kind) {
    case TROUPE_ALL_REDUCE:
      return OperationKind::all_reduce;
    case TROUPE_REDUCE_SCATTER:
      return OperationKind::reduce_scatter;
    case TROUPE_ALL_GATHER:
      return OperationKind::all_gather;
    case TROUPE_ALL_TO_ALL:
      return OperationKind::all_to_all;
    case TROUPE_BROADCAST:
      return OperationKind::broadcast;
    case TROUPE_BARRIER:
      return OperationKind::barrier;
    case TROUPE_OPERATION_KIND_LAST:
      break;
  }
  return fail(Errc::invalid_argument, "{} is not a kind of operation; use one of troupe_operation_kind",
              static_cast<int>(kind));
}

Result<ReduceOp> reduce_op_of(troupe_reduction reduction) {
  switch (reduction) {
    case TROUPE_SUM:
      return ReduceOp::sum;
    case TROUPE_AVERAGE:
      return ReduceOp::average;
    case TROUPE_MIN:
      return ReduceOp::min;
    case TROUPE_MAX:
      return ReduceOp::max;
    case TROUPE_PRODUCT:
      return ReduceOp::product;
    case TROUPE_BIT_AND:
      return ReduceOp::bit_and;
    case TROUPE_BIT_OR:
      return ReduceOp::bit_or;
    case TROUPE_BIT_XOR:
      return ReduceOp::bit_xor;
    case TROUPE_REDUCTION_LAST:
      break;
  }
  return fail(Errc::invalid_argument, "{} is not a reduction; use one of troupe_reduction",
              static_cast<int>(reduction));
}

Result<std::vector<BufferView>> pieces_of(const char* name, const troupe_piece* pieces, std::size_t count,
                                          DType dtype) {
  if (count > 0 && pieces == nullptr) return tl::unexpected(missing(name).error());
  auto left = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  std::vector<BufferView> views;
  for (std::size_t i = 0; i < count; ++i) {
    const troupe_piece& piece = pieces[i];
    if (piece.count > 0 && piece.data == nullptr)
      return fail(Errc::invalid_argument, "{}[{}] is NULL, expected {} elements of {}", name, i, piece.count,
                  troupe::core::name_of(dtype));
    if (piece.count > left / size_of(dtype))
      return fail(Errc::invalid_argument, "{}[{}] has {} elements of {}, which no memory holds", name, i,
                  piece.count, troupe::core::name_of(dtype));
    left -= piece.count * size_of(dtype);
    views.push_back({static_cast<std::byte*>(piece.data), piece.count * size_of(dtype)});
  }
  return views;
}

Result<Peers::Collective> collective_of(const troupe_collective& asked, int members) {
  Peers::Collective collective;
  auto& operation = collective.operation;
  operation.kind = TRY(kind_of(asked.kind));
  operation.dtype = TRY(dtype_of(asked.dtype));
  operation.reduce = TRY(reduce_op_of(asked.reduction));
  operation.peer = asked.root;
  operation.deadline = limit_of(asked.milliseconds);
  if (asked.input_counts != nullptr)
    operation.input_counts = std::vector<std::size_t>(asked.input_counts, asked.input_counts + members);
  if (asked.output_counts != nullptr)
    operation.output_counts = std::vector<std::size_t>(asked.output_counts, asked.output_counts + members);
  collective.inputs = TRY(pieces_of("inputs", asked.inputs, asked.input_pieces, operation.dtype));
  collective.outputs = TRY(pieces_of("outputs", asked.outputs, asked.output_pieces, operation.dtype));
  return collective;
}

Result<Peers*> of(troupe_peers* peers) {
  if (peers == nullptr)
    return fail(Errc::invalid_argument, "the group is NULL; troupe_peers_connect() makes one");
  return peers->peers.get();
}

/// Posts a message by `body`, which gets its memory: of an empty one a byte that stands for it.
template <class Body>
troupe_status post_message(troupe_peers* peers, void* data, std::size_t bytes, std::string what,
                           troupe_message** message, troupe_error* error, const Body& body) {
  return call(error, [&]() -> Result<void> {
    if (message == nullptr) return missing("message");
    if (bytes > 0 && data == nullptr) return missing("data");
    auto made = std::make_unique<troupe_message>();
    made->what = std::move(what);
    const BufferView memory = bytes > 0 ? BufferView{static_cast<std::byte*>(data), bytes}
                                        : BufferView{&made->nothing, sizeof made->nothing};
    made->transfer = TRY(body(*TRY(of(peers)), memory));
    *message = made.release();
    return {};
  });
}

}  // namespace

troupe_status troupe_peers_connect(const troupe_peers_options* options, troupe_peers** peers,
                                   troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (peers == nullptr) return missing("peers");
    if (options->name == nullptr) return missing("options.name");
    if (options->ranks == nullptr) return missing("options.ranks");
    if (options->index >= options->members)
      return fail(Errc::invalid_argument, "options.index is {}, expected a place among {} members",
                  options->index, options->members);
    Peers::Options chosen;
    chosen.group.job = "peers";
    chosen.group.name = options->name;
    for (std::size_t i = 0; i < options->members; ++i) chosen.group.members.push_back({options->ranks[i]});
    chosen.group.self = chosen.group.members[options->index];
    chosen.group.deadline = limit_of(options->milliseconds);
    chosen.host = troupe::actors::host_identity().id;
    if (options->address != nullptr) chosen.address = options->address;
    chosen.key = TRY(key_of_job());
    chosen.only_tcp = TRY(goes_only_over_tcp());
    if (options->beside == nullptr) chosen.group.recorder = recorder_of(chosen.group);
    auto made = std::make_unique<troupe_peers>();
    made->peers = TRY(Peers::connect(std::make_unique<CallersStore>(options->store), std::move(chosen),
                                     options->beside == nullptr ? nullptr : options->beside->peers.get()));
    *peers = made.release();
    return {};
  });
}

void troupe_peers_free(troupe_peers* peers) {
  delete peers;
}

troupe_status troupe_peers_run(troupe_peers* peers, const troupe_collective* collective, uint64_t* posted,
                               troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    Peers& group = *TRY(of(peers));
    if (collective == nullptr) return missing("collective");
    auto made = TRY(collective_of(*collective, group.size()));
    if (posted == nullptr) return group.run(std::move(made));
    *posted = TRY(group.post(std::move(made)));
    return {};
  });
}

troupe_status troupe_peers_wait(troupe_peers* peers, uint64_t posted, int64_t milliseconds,
                                troupe_error* error) {
  return call(error, [&]() -> Result<void> { return TRY(of(peers))->wait(posted, limit_of(milliseconds)); });
}

uint64_t troupe_peers_completed(const troupe_peers* peers) {
  return peers == nullptr ? 0 : peers->peers->completed();
}

troupe_status troupe_peers_send(troupe_peers* peers, const void* data, size_t bytes, int32_t to, uint32_t tag,
                                troupe_message** message, troupe_error* error) {
  // Sending only reads.
  return post_message(
      peers, const_cast<void*>(data), bytes,
      fmt::format("the send of {} bytes with tag {}, which the other side receives alike,", bytes, tag),
      message, error, [&](Peers& group, BufferView memory) { return group.send(to, tag, memory); });
}

troupe_status troupe_peers_receive(troupe_peers* peers, void* data, size_t bytes, int32_t from, uint32_t tag,
                                   troupe_message** message, troupe_error* error) {
  return post_message(
      peers, data, bytes,
      fmt::format("the receive of {} bytes with tag {}, which the other side sends alike,", bytes, tag),
      message, error, [&](Peers& group, BufferView memory) { return group.receive(from, tag, memory); });
}

troupe_status troupe_message_wait(troupe_message* message, int64_t milliseconds, int32_t* from,
                                  troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (message == nullptr) return missing("message");
    const std::lock_guard lock(message->mutex);
    if (!message->over)
      message->over =
          message->transfer->wait(troupe::gpu::OperationDeadline(message->what, limit_of(milliseconds)));
    const int member = TRY(*message->over);
    if (from != nullptr) *from = member;
    return {};
  });
}

void troupe_message_free(troupe_message* message) {
  delete message;
}

void troupe_peers_abort(troupe_peers* peers, const char* reason) {
  if (peers != nullptr) peers->peers->abort({Errc::aborted, reason == nullptr ? "aborted" : reason});
}
