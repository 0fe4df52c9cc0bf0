#include "gpu/collective/peers.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/automatic_backend.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/devices.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Result;

/// The slot for messages with this tag and size: messages of different sizes never meet. Large sizes are
/// hashed.
std::uint64_t slot_of(std::uint32_t tag, std::size_t bytes) {
  constexpr int kBits = 32;
  constexpr std::size_t kExact = std::size_t{1} << (kBits - 1);
  const std::uint64_t hash = bytes * 0x9e3779b97f4a7c15 >> (65 - kBits);
  return (bytes < kExact ? bytes : kExact | hash) << 32 | tag;
}

std::size_t bytes_of(const std::vector<BufferView>& pieces) {
  std::size_t bytes = 0;
  for (const BufferView piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace

/// Pieces as one range: their own memory if there is one piece, otherwise memory into and out of which they
/// are copied.
class JoinedPieces {
 public:
  explicit JoinedPieces(std::vector<BufferView> pieces) : pieces_(std::move(pieces)) {
    std::erase_if(pieces_, [](BufferView piece) { return piece.bytes == 0; });
    if (pieces_.size() == 1) view_ = pieces_.front();
    if (pieces_.size() < 2) return;
    view_.bytes = bytes_of(pieces_);
    copies_ = std::make_unique_for_overwrite<std::byte[]>(view_.bytes);
    view_.data = copies_.get();
  }

  BufferView view() const { return view_; }
  bool is_copied() const { return copies_ != nullptr; }
  void fill() const {
    std::byte* at = view_.data;
    for (const BufferView piece : pieces_) at = std::copy_n(piece.data, piece.bytes, at);
  }
  void spread() const {
    const std::byte* at = view_.data;
    for (const BufferView piece : pieces_) {
      std::memcpy(piece.data, at, piece.bytes);
      at += piece.bytes;
    }
  }

 private:
  std::vector<BufferView> pieces_;
  std::unique_ptr<std::byte[]> copies_;
  BufferView view_;
};

/// The memory of a collective, which its operation then has too.
struct Peers::Memory {
  explicit Memory(Collective& collective)
      : in_place(collective.operation.kind == OperationKind::all_reduce),
        inputs(std::move(collective.inputs)),
        outputs(in_place ? std::vector<BufferView>{} : std::move(collective.outputs)) {
    collective.operation.input = inputs.view();
    collective.operation.output = results().view();
  }

  const JoinedPieces& results() const { return in_place ? inputs : outputs; }

  const bool in_place;
  const JoinedPieces inputs;
  const JoinedPieces outputs;
};

/// A collective on its way; its tasks share it.
struct Peers::Run {
  explicit Run(Collective& collective) : memory(collective) {}
  Result<void> result() const { return *status->result(); }

  const Memory memory;
  std::shared_ptr<OperationStatus> status;
};

Result<std::unique_ptr<Peers>> Peers::connect(std::unique_ptr<Rendezvous> rendezvous, Options options,
                                              const Peers* beside) {
  std::unique_ptr<Peers> peers(new Peers());
  peers->rendezvous_ = std::move(rendezvous);
  peers->recorder_ = beside != nullptr ? beside->recorder_ : options.group.recorder;
  options.group.recorder = peers->recorder_;
  // Members that share no host share no memory.
  const auto host =
      options.only_tcp ? static_cast<std::uint64_t>(options.group.self.value) + 1 : options.host;
  peers->backend_ = std::make_unique<AutomaticBackend>(
      *peers->rendezvous_, host, [address = options.address]() -> Result<std::string> { return address; },
      options.key);
  TcpOptions tcp;
  tcp.host = options.address;
  tcp.key = options.key;
  peers->connections_ = beside != nullptr ? beside->connections_ : TRY(TcpHub::open(tcp));
  peers->device_ = TRY(open_device("host"));
  GroupOptions messages = options.group;
  messages.name += "-messages";
  peers->group_ = TRY(peers->backend_->create_group(std::move(options.group)));
  peers->messages_ =
      TRY(Mesh::connect(peers->connections_, messages, *peers->rendezvous_, Mesh::MovedBy::hub));
  return peers;
}

Peers::~Peers() {
  bool is_busy = false;
  {
    std::lock_guard lock(posting_);
    is_busy = stream_ != nullptr && completed() != posted_;
  }
  if (is_busy) abort({Errc::aborted, "the group was destroyed before its last operation had ended"});
  stream_.reset();
}

Result<void> Peers::run(Collective collective) {
  const Memory memory(collective);
  if (memory.inputs.is_copied()) memory.inputs.fill();
  TRY(group_->run(std::move(collective.operation)));
  if (memory.results().is_copied()) memory.results().spread();
  return {};
}

Result<std::uint64_t> Peers::post(Collective collective) {
  const auto run = std::make_shared<Run>(collective);
  std::lock_guard lock(posting_);
  if (stream_ == nullptr) stream_ = TRY(device_->create_stream({.name = "peers"}));
  if (run->memory.inputs.is_copied()) stream_->enqueue("join", {}, [run] { run->memory.inputs.fill(); });
  run->status = TRY(group_->post(std::move(collective.operation), stream_.get()));
  if (run->memory.results().is_copied()) {
    stream_->enqueue("spread", {}, [run] {
      if (run->result()) run->memory.results().spread();
    });
  }
  const std::uint64_t number = ++posted_;
  stream_->notify([this, run, number] { finish(number, run->result()); });
  return number;
}

void Peers::finish(std::uint64_t number, const Result<void>& result) {
  {
    std::lock_guard lock(mutex_);
    completed_ = number;
    if (!result && !failure_) {
      first_failed_ = number;
      failure_ = result.error();
    }
  }
  changed_.notify_all();
}

Result<void> Peers::wait(std::uint64_t posted, std::chrono::nanoseconds limit) {
  const auto is_over = [&] { return completed_ >= posted; };
  std::unique_lock lock(mutex_);
  // Waits in parts: a limit may be too long for the clock to be added to.
  constexpr std::chrono::nanoseconds kPart = std::chrono::hours(1);
  while (!is_over()) {
    const auto part = std::min(limit, kPart);
    if (changed_.wait_for(lock, part, is_over)) break;
    limit -= part;
    if (limit <= std::chrono::nanoseconds::zero())
      return core::fail(Errc::timeout,
                        "group '{}': operation {} did not end in the time that this wait allows",
                        group_->name(), posted);
  }
  if (failure_ && posted >= first_failed_) return tl::unexpected(*failure_);
  return {};
}

std::uint64_t Peers::completed() const {
  std::lock_guard lock(mutex_);
  return completed_;
}

Result<void> Peers::check_member(int member) const {
  if (member >= 0 && member < size() && member != group_->index()) return {};
  return core::fail(
      Errc::invalid_argument,
      "group '{}': expected a message with another of its {} members, found member {}, and this "
      "is member {}",
      group_->name(), size(), member, group_->index());
}

Result<std::unique_ptr<PostedTransfer>> Peers::send(int to, std::uint32_t tag, ConstBufferView memory) {
  TRY(check_member(to));
  // Sending only reads.
  return messages_->post_send(
      {to, slot_of(tag, memory.bytes), const_cast<std::byte*>(memory.data), memory.bytes});
}

Result<std::unique_ptr<PostedTransfer>> Peers::receive(int from, std::uint32_t tag, BufferView memory) {
  if (from != kAnyMember) TRY(check_member(from));
  return messages_->post_receive({from, slot_of(tag, memory.bytes), memory.data, memory.bytes});
}

void Peers::abort(const core::Error& reason) {
  group_->abort(reason);
  (void)messages_->fail(reason);
}

}  // namespace troupe::gpu
