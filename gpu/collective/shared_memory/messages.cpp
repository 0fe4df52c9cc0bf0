#include <algorithm>
#include <cstring>

#include "core/errors.hpp"
#include "gpu/collective/shared_memory/collectives.hpp"
#include "gpu/collective/shared_memory/signature.hpp"

namespace troupe::gpu {
namespace {

using core::Result;

/// One message through a channel, in chunks; at least one, which brings the signature. The channel's two
/// words count chunks over all messages, and are equal between messages.
class Message {
 public:
  Message(Arena& arena, const Operation& operation, const OperationDeadline& deadline)
      : arena_(arena),
        operation_(operation),
        deadline_(deadline),
        sends_(operation.kind == OperationKind::send),
        from_(sends_ ? arena.index() : operation.peer),
        to_(sends_ ? operation.peer : arena.index()),
        channel_(arena.channel(from_, to_)),
        bytes_(std::max(operation.input.bytes, operation.output.bytes)),
        step_(arena.layout().channel_buffer_bytes()),
        chunks_(static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes_ + step_ - 1) / step_))) {}

  Result<void> run() { return sends_ ? send() : receive(); }

 private:
  Result<void> send() {
    const std::uint32_t base = channel_.written.value.load();
    write_signature(signature_of(operation_), reinterpret_cast<std::byte*>(&channel_.message));
    for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk >= 2) TRY(await(channel_.read, base + chunk - 1));
      copy(operation_.input.data + chunk * step_, arena_.channel_buffer(from_, to_, base + chunk), chunk);
      publish(channel_.written, base + chunk + 1);
    }
    return await(channel_.read, base + chunks_);
  }

  Result<void> receive() {
    const std::uint32_t base = channel_.read.value.load();
    for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      TRY(await(channel_.written, base + chunk + 1));
      if (chunk == 0) TRY(check_signature());
      copy(arena_.channel_buffer(from_, to_, base + chunk), operation_.output.data + chunk * step_, chunk);
      publish(channel_.read, base + chunk + 1);
    }
    return {};
  }

  Result<void> check_signature() {
    const auto& members = arena_.group().members;
    const auto sentence =
        find_disagreement(read_signature(reinterpret_cast<const std::byte*>(&channel_.message)),
                          members[static_cast<std::size_t>(from_)], signature_of(operation_),
                          members[static_cast<std::size_t>(to_)]);
    if (!sentence) return {};
    return tl::unexpected(arena_.declare(
        {core::Errc::mismatch,
         fmt::format("group '{}': {}; both sides of a message must agree", arena_.group().name, *sentence)}));
  }

  void copy(const std::byte* from, std::byte* to, std::uint32_t chunk) const {
    const std::size_t bytes = std::min(step_, bytes_ - chunk * step_);
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  Result<void> await(SharedWord& word, std::uint32_t target) {
    return arena_.await(word, target, deadline_,
                        [peer = operation_.peer](int member) { return member == peer; });
  }

  Arena& arena_;
  const Operation& operation_;
  const OperationDeadline& deadline_;
  const bool sends_;
  const int from_;
  const int to_;
  ArenaChannel& channel_;
  const std::size_t bytes_;
  const std::size_t step_;
  const std::uint32_t chunks_;
};

}  // namespace

Result<void> run_message(Arena& arena, const Operation& operation, const OperationDeadline& deadline) {
  return Message(arena, operation, deadline).run();
}

}  // namespace troupe::gpu
