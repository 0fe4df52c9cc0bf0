#include "actors/world/transport/tcp.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "actors/world/transport/binding.hpp"
#include "actors/world/transport/running_time.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"

namespace troupe::actors {
namespace {

using asio::ip::tcp;
using core::Errc;

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr auto kFirstRetry = std::chrono::milliseconds(1);
constexpr auto kLastRetry = std::chrono::milliseconds(500);
/// A rank that has waited for rank 0 tries again after this part of that time.
constexpr int kPartOfWait = 8;
/// How long a refused peer has to read the reason.
constexpr auto kLinger = std::chrono::seconds(1);

void prepare(tcp::socket& socket) {
  std::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
}

std::chrono::nanoseconds steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

/// Everything except the router and what close() waits for is accessed only by the network's thread.
class TcpNetwork::Shell {
 public:
  Shell(TcpOptions options, NetworkHandler handler)
      : options_(std::move(options)), handler_(std::move(handler)), router_(options_.router) {}
  ~Shell() { stop(); }

  core::Result<void> start();
  core::Result<void> send(core::Rank to, std::span<const std::byte> message);
  core::Result<void> close();
  void give_up(core::Error why);
  const TcpOptions& options() const { return options_; }
  std::uint16_t port() const { return port_; }

 private:
  using Id = Router::ConnectionId;
  struct Wire {
    explicit Wire(tcp::socket connected) : socket(std::move(connected)), linger(socket.get_executor()) {}

    tcp::socket socket;
    asio::steady_timer linger;
    std::array<std::byte, kChunkBytes> input;
    std::vector<std::byte> output;  ///< being written; empty if nothing is
    bool closing = false;
  };
  // Owned by the table and by the socket's pending operations.
  using WirePointer = std::shared_ptr<Wire>;

  core::Result<void> listen();
  core::Result<void> reach();
  core::Result<void> bind();
  core::Result<void> find_hub(std::chrono::nanoseconds patience);
  void run();
  void stop();
  void accept();
  void make_room();
  void resolve();
  void try_to_connect(tcp::resolver::results_type endpoints);
  void retry(tcp::resolver::results_type endpoints, std::string why);
  void adopt(tcp::socket socket);
  void read(Id id, const WirePointer& wire);
  void write(Id id, const WirePointer& wire);
  void finish(Id id, const WirePointer& wire);
  void pump_soon();
  void pump();
  bool deliver_events();
  void deliver(NetworkEvent event);
  void close_when_complete(const NetworkEvent& event);
  void arm();
  std::chrono::nanoseconds now();
  void opened(core::Result<void> result);

  const TcpOptions options_;
  const NetworkHandler handler_;
  std::string address_;     ///< where rank 0 is
  std::uint16_t port_ = 0;  ///< there

  std::mutex mutex_;  // guards router_, time_, armed_, is_leaving_ and quiet_
  Router router_;
  RunningTime time_;
  std::chrono::nanoseconds armed_ = std::chrono::nanoseconds::max();  ///< when timer_ fires; max for never
  bool is_leaving_ = false;
  bool quiet_ = false;  ///< everything was sent and no rank is connected
  std::condition_variable changed_;
  std::atomic<bool> pump_is_posted_ = false;

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  tcp::acceptor acceptor_{io_};
  tcp::resolver resolver_{io_};
  tcp::socket connecting_{io_};
  asio::steady_timer timer_{io_};
  asio::steady_timer retry_timer_{io_};
  std::chrono::nanoseconds give_up_{};
  std::map<Id, WirePointer> wires_;
  std::vector<Id> ended_;        ///< wires that the router does not know to be gone
  std::set<core::Rank> joined_;  ///< at the hub: all ranks that ever joined
  std::promise<core::Result<void>> opening_;
  bool is_open_ = false;
  std::thread thread_;
};

core::Result<void> TcpNetwork::Shell::bind() {
  TRY(listen_at(options_, resolver_, acceptor_));
  const auto bound = acceptor_.local_endpoint();
  port_ = bound.port();
  options_.log.info(
      "the control network listens at {} port {}{}", options_.address, port_,
      bound.address().is_loopback() ? "" : ", which other hosts can reach; it is not encrypted");
  return {};
}

core::Result<void> TcpNetwork::Shell::start() {
  auto started = options_.router.self == Router::kHub ? listen() : reach();
  if (!started) stop();
  return started;
}

core::Result<void> TcpNetwork::Shell::listen() {
  TRY(bind());
  if (options_.announce) TRY(options_.announce(port_));
  accept();
  run();
  return {};
}

core::Result<void> TcpNetwork::Shell::reach() {
  address_ = options_.address;
  port_ = options_.port;
  give_up_ = steady_now() + options_.connect_deadline;
  TRY(find_hub(options_.connect_deadline));
  resolve();
  auto result = opening_.get_future();
  run();
  // The network's thread gives up by itself; the extra second is in case it cannot run.
  if (result.wait_for(options_.connect_deadline + std::chrono::seconds(1)) == std::future_status::timeout) {
    return core::fail(Errc::timeout, "rank 0 at {} port {} did not welcome this rank within {:.3g} s",
                      address_, port_, std::chrono::duration<double>(options_.connect_deadline).count());
  }
  return result.get();
}

core::Result<void> TcpNetwork::Shell::find_hub(std::chrono::nanoseconds patience) {
  if (!options_.find) return {};
  auto found = TRY(options_.find(patience));
  address_ = std::move(found.host);
  port_ = found.port.value_or(0);
  return {};
}

void TcpNetwork::Shell::run() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "troupe-network");
    io_.run();
  });
}

void TcpNetwork::Shell::stop() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

void TcpNetwork::Shell::accept() {
  if (!acceptor_.is_open()) return;
  acceptor_.async_accept([this](std::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      make_room();
      adopt(std::move(socket));
      return accept();
    }
    options_.log.warning("the control network could not accept a connection: {}", error.message());
    retry_timer_.expires_after(kLastRetry);
    retry_timer_.async_wait([this](std::error_code aborted) {
      if (!aborted) accept();
    });
  });
}

/// Strangers must not use up the descriptors, and those who say nothing not keep the job's ranks out.
void TcpNetwork::Shell::make_room() {
  if (wires_.size() < 2 * static_cast<std::size_t>(options_.router.world.value) + 16) return;
  std::unique_lock lock(mutex_);
  const auto stranger = router_.oldest_stranger();
  lock.unlock();
  const auto found = stranger ? wires_.find(*stranger) : wires_.end();
  if (found != wires_.end()) finish(found->first, WirePointer(found->second));
}

void TcpNetwork::Shell::resolve() {
  std::error_code not_numeric;
  auto address = asio::ip::make_address(address_, not_numeric);
  if (!not_numeric) {
    return try_to_connect(tcp::resolver::results_type::create(tcp::endpoint(address, port_), "", ""));
  }
  resolver_.async_resolve(address_, std::to_string(port_),
                          [this](std::error_code error, tcp::resolver::results_type endpoints) {
                            if (error) return retry({}, error.message());
                            try_to_connect(std::move(endpoints));
                          });
}

void TcpNetwork::Shell::try_to_connect(tcp::resolver::results_type endpoints) {
  connecting_ = tcp::socket(io_);
  asio::async_connect(connecting_, endpoints, [this, endpoints](std::error_code error, const tcp::endpoint&) {
    if (error) return retry(endpoints, error.message());
    adopt(std::move(connecting_));
  });
}

void TcpNetwork::Shell::retry(tcp::resolver::results_type endpoints, std::string why) {
  const auto waited = steady_now() - (give_up_ - options_.connect_deadline);
  const auto after = std::clamp<std::chrono::nanoseconds>(waited / kPartOfWait, kFirstRetry, kLastRetry);
  if (steady_now() + after > give_up_) {
    return opened(core::fail(
        Errc::timeout,
        "rank 0 could not be reached at {} port {} within {:.3g} s: {}; see whether rank 0 has started, and "
        "that MASTER_ADDR and MASTER_PORT are the same on all ranks",
        address_, port_, std::chrono::duration<double>(options_.connect_deadline).count(), why));
  }
  retry_timer_.expires_after(after);
  retry_timer_.async_wait([this, endpoints = std::move(endpoints)](std::error_code aborted) {
    if (aborted) return;
    if (!endpoints.empty() && !options_.find) return try_to_connect(endpoints);
    // A rank 0 of an earlier start may have said where it listened.
    core::disregard(find_hub(kLastRetry), "the place that is known is tried again");
    resolve();
  });
}

void TcpNetwork::Shell::opened(core::Result<void> result) {
  if (!std::exchange(is_open_, true)) opening_.set_value(std::move(result));
}

void TcpNetwork::Shell::give_up(core::Error why) {
  if (options_.router.self == Router::kHub) return;
  asio::post(io_, [this, why = std::move(why)]() mutable { opened(tl::unexpected(std::move(why))); });
}

void TcpNetwork::Shell::adopt(tcp::socket socket) {
  prepare(socket);
  auto wire = std::make_shared<Wire>(std::move(socket));
  Id id = 0;
  {
    std::lock_guard lock(mutex_);
    id = router_.open(now());
  }
  wires_.emplace(id, wire);
  read(id, wire);
  pump();
}

void TcpNetwork::Shell::read(Id id, const WirePointer& wire) {
  wire->socket.async_read_some(
      asio::buffer(wire->input), [this, id, wire](std::error_code error, std::size_t bytes) {
        {
          std::lock_guard lock(mutex_);
          if (error) {
            const auto when = now();
            router_.disconnected(id, error == asio::error::eof ? "end of file" : error.message(), when,
                                 time_.absence_before(when));
          } else {
            router_.receive(id, std::span(wire->input).first(bytes), now());
          }
        }
        error ? finish(id, wire) : read(id, wire);
        pump();
      });
}

void TcpNetwork::Shell::write(Id id, const WirePointer& wire) {
  bool is_writing = !wire->output.empty();
  bool is_over = false;
  {
    std::lock_guard lock(mutex_);
    is_over = router_.is_over(id);
    if (!is_writing) wire->output = router_.take_output(id, kChunkBytes);
  }
  if (is_over && !std::exchange(wire->closing, true)) {
    wire->linger.expires_after(kLinger);
    wire->linger.async_wait([this, id, wire](std::error_code aborted) {
      if (!aborted) finish(id, wire);
    });
  }
  if (is_writing) return;
  if (!wire->output.empty()) {
    asio::async_write(wire->socket, asio::buffer(wire->output),
                      [this, id, wire](std::error_code error, std::size_t) {
                        wire->output.clear();
                        // A wire that cannot be written reports why when it is read.
                        if (error) return;
                        write(id, wire);
                        pump();
                      });
  } else if (is_over) {
    std::error_code ignored;
    wire->socket.shutdown(tcp::socket::shutdown_send, ignored);
  }
}

void TcpNetwork::Shell::finish(Id id, const WirePointer& wire) {
  std::error_code ignored;
  wire->linger.cancel();
  wire->socket.close(ignored);
  if (wires_.erase(id) > 0) ended_.push_back(id);
}

core::Result<void> TcpNetwork::Shell::send(core::Rank to, std::span<const std::byte> message) {
  {
    std::lock_guard lock(mutex_);
    TRY(router_.send(to, message, now()));
  }
  pump_soon();
  return {};
}

void TcpNetwork::Shell::pump_soon() {
  if (pump_is_posted_.exchange(true)) return;
  asio::post(io_, [this] {
    pump_is_posted_ = false;
    pump();
  });
}

/// Passes what the router has produced to the handler and to the wires.
void TcpNetwork::Shell::pump() {
  while (deliver_events()) continue;
  std::vector<Id> touched;
  {
    std::lock_guard lock(mutex_);
    touched = router_.take_touched();
  }
  for (const Id id : touched) {
    if (const auto wire = wires_.find(id); wire != wires_.end()) write(id, WirePointer(wire->second));
  }
  arm();
}

bool TcpNetwork::Shell::deliver_events() {
  std::vector<NetworkEvent> events;
  {
    std::lock_guard lock(mutex_);
    events = router_.take_events();
  }
  for (NetworkEvent& event : events) deliver(std::move(event));
  return !events.empty();
}

void TcpNetwork::Shell::deliver(NetworkEvent event) {
  if (!is_open_ && options_.router.self != Router::kHub) {
    if (auto* lost = std::get_if<RankLost>(&event)) {
      // A listener that closes before it answers may belong to an epoch that ends as this one begins.
      if (lost->why.code == Errc::peer_lost) return retry({}, std::move(lost->why.message));
      return opened(tl::unexpected(std::move(lost->why)));
    }
    if (std::holds_alternative<RankJoined>(event)) opened({});
  }
  if (options_.router.self == Router::kHub) close_when_complete(event);
  handler_(std::move(event));
}

/// Once all have joined and one has left, no rank is expected any more. A rank that connects now belongs to
/// the next epoch, and waits for its listener.
void TcpNetwork::Shell::close_when_complete(const NetworkEvent& event) {
  if (const auto* joined = std::get_if<RankJoined>(&event)) joined_.insert(joined->rank);
  const auto others = static_cast<std::size_t>(options_.router.world.value) - 1;
  if (std::holds_alternative<RankJoined>(event) && joined_.size() == others && options_.all_have_come)
    options_.all_have_come();
  if (!std::holds_alternative<RankLeft>(event) || joined_.size() < others) return;
  std::error_code ignored;
  acceptor_.close(ignored);
}

void TcpNetwork::Shell::arm() {
  std::lock_guard lock(mutex_);
  for (const Id id : std::exchange(ended_, {})) router_.forget(id);
  if (is_leaving_) {
    const auto is_written = [](const auto& wire) { return wire.second->output.empty(); };
    quiet_ = router_.is_quiet() && std::ranges::all_of(wires_, is_written);
    changed_.notify_all();
  }

  // Traffic postpones the deadline; the timer then fires too early once and is armed again.
  const auto deadline = router_.deadline();
  if (deadline == std::chrono::nanoseconds::max()) return;
  const auto due = time_.including_absences(deadline);
  if (due >= armed_) return;
  armed_ = due;
  timer_.expires_at(std::chrono::steady_clock::time_point(due));
  timer_.async_wait([this](std::error_code aborted) {
    if (aborted) return;
    {
      std::lock_guard guard(mutex_);
      router_.tick(now());
      armed_ = std::chrono::nanoseconds::max();
    }
    pump();
  });
}

/// Requires the mutex.
std::chrono::nanoseconds TcpNetwork::Shell::now() {
  return time_.now(steady_now(), armed_);
}

core::Result<void> TcpNetwork::Shell::close() {
  CHECK(std::this_thread::get_id() != thread_.get_id(), "the handler cannot wait for its own thread");
  if (!thread_.joinable()) return {};
  bool done = false;
  {
    std::unique_lock lock(mutex_);
    router_.leave(now());
    is_leaving_ = true;
    quiet_ = false;
    pump_soon();
    done = changed_.wait_for(lock, options_.close_deadline, [this] { return quiet_; });
  }
  stop();
  if (done) return {};
  return core::fail(Errc::timeout, "not all ranks answered the farewell of rank {} within {:.3g} s",
                    options_.router.self.value,
                    std::chrono::duration<double>(options_.close_deadline).count());
}

TcpNetwork::TcpNetwork(TcpOptions options, NetworkHandler handler)
    : shell_(std::make_unique<Shell>(std::move(options), std::move(handler))) {}
TcpNetwork::~TcpNetwork() = default;

core::Result<std::unique_ptr<TcpNetwork>> TcpNetwork::open(TcpOptions options, NetworkHandler handler) {
  auto network = std::make_unique<TcpNetwork>(std::move(options), std::move(handler));
  TRY(network->start());
  return network;
}

core::Result<void> TcpNetwork::start() {
  return shell_->start();
}
void TcpNetwork::give_up(core::Error why) {
  shell_->give_up(std::move(why));
}
core::Rank TcpNetwork::rank() const {
  return shell_->options().router.self;
}
core::WorldSize TcpNetwork::world_size() const {
  return shell_->options().router.world;
}
core::Result<void> TcpNetwork::send(core::Rank to, std::span<const std::byte> message) {
  return shell_->send(to, message);
}
core::Result<void> TcpNetwork::close() {
  return shell_->close();
}
std::uint16_t TcpNetwork::port() const {
  return shell_->port();
}

}  // namespace troupe::actors
