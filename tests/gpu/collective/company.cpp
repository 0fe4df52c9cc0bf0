#include "tests/gpu/collective/company.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "core/errors.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/manual_timeline.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::gpu {
namespace {

class SimulatedCompany final : public Company {
 public:
  explicit SimulatedCompany(int size) : fabric_(timeline_), backend_(fabric_.backend()) {
    job_ = "simulated";
    for (int i = 0; i < size; ++i) {
      devices_.push_back(std::make_unique<SimulatedDevice>(timeline_, SimulatedDeviceOptions{}));
    }
  }

  int size() const override { return static_cast<int>(devices_.size()); }
  Device& device(int member) override { return *devices_[static_cast<std::size_t>(member)]; }

  Groups create_groups(const std::string& name, core::Epoch epoch) override {
    Groups groups;
    for (int i = 0; i < size(); ++i) groups.push_back(create_group(i, options_of(i, name, epoch)).value());
    return groups;
  }

  core::Result<std::unique_ptr<Group>> create_group(int /*member*/, GroupOptions options) override {
    return backend_->create_group(std::move(options));
  }

  void settle(const std::vector<Stream>& streams) override {
    timeline_.run_until_idle();
    for (const Stream& stream : streams) {
      CHECK(stream->synchronize({}).has_value(), "an idle timeline leaves no stream with work");
    }
  }

 private:
  ManualTimeline timeline_;
  SimulatedFabric fabric_;
  std::unique_ptr<CollectiveBackend> backend_;
  std::vector<std::unique_ptr<SimulatedDevice>> devices_;
};

/// A member's device and back-end.
struct RealMember {
  std::unique_ptr<Device> device;
  std::unique_ptr<CollectiveBackend> backend;
};
using MakeMember = std::function<RealMember(Rendezvous&)>;

RealMember make_shared_memory(Rendezvous& rendezvous) {
  return {open_host_device().value(), std::make_unique<SharedMemoryBackend>(rendezvous)};
}

RealMember make_tcp(Rendezvous& rendezvous) {
  return {open_host_device().value(), TcpBackend::open(rendezvous, {}).value()};
}

/// Members in real time, each with its device.
class RealCompany final : public Company {
 public:
  RealCompany(int size, const MakeMember& make_member) {
    static std::atomic<int> jobs = 0;
    job_ = fmt::format("test-{}-{}", getpid(), jobs++);
    for (int i = 0; i < size; ++i) {
      members_.push_back(make_member(rendezvous_));
    }
  }

  int size() const override { return static_cast<int>(members_.size()); }
  Device& device(int member) override { return *members_[static_cast<std::size_t>(member)].device; }

  Groups create_groups(const std::string& name, core::Epoch epoch) override {
    Groups groups(members_.size());
    std::vector<std::jthread> threads;
    for (int i = 0; i < size(); ++i) {
      threads.emplace_back([&, i] {
        groups[static_cast<std::size_t>(i)] = create_group(i, options_of(i, name, epoch)).value();
      });
    }
    threads.clear();
    return groups;
  }

  core::Result<std::unique_ptr<Group>> create_group(int member, GroupOptions options) override {
    return members_[static_cast<std::size_t>(member)].backend->create_group(std::move(options));
  }

  void settle(const std::vector<Stream>& streams) override {
    for (const Stream& stream : streams) {
      CHECK(stream->synchronize(std::chrono::seconds(60)).has_value(), "streams empty within a minute");
    }
  }

 private:
  MemoryRendezvous rendezvous_;
  std::vector<RealMember> members_;
};

/// Members with the emulated NCCL, which tells what they did wrong.
class NcclCompany final : public Company {
 public:
  explicit NcclCompany(int size)
      : members_(std::make_unique<RealCompany>(size, [this](Rendezvous& rendezvous) {
          EmulatedNcclDevice emulated = open_emulated_nccl_device();
          auto library = make_nccl_library(fake_.start_process(emulated.run_on_stream).api()).value();
          auto backend = std::make_unique<NcclBackend>(std::move(library), *emulated.device,
                                                       std::move(emulated.port), rendezvous);
          return RealMember{std::move(emulated.device), std::move(backend)};
        })) {
    job_ = "nccl";
  }
  ~NcclCompany() override {
    members_.reset();
    EXPECT_EQ(fake_.live_communicators(), 0U);
    EXPECT_THAT(fake_.violations(), ::testing::IsEmpty());
  }

  int size() const override { return members_->size(); }
  Device& device(int member) override { return members_->device(member); }
  Groups create_groups(const std::string& name, core::Epoch epoch) override {
    return members_->create_groups(name, epoch);
  }
  core::Result<std::unique_ptr<Group>> create_group(int member, GroupOptions options) override {
    return members_->create_group(member, std::move(options));
  }
  void settle(const std::vector<Stream>& streams) override { members_->settle(streams); }
  void run_on(StreamView stream, std::function<void()> body) override {
    run_on_emulated_stream(stream, std::move(body));
  }

 private:
  FakeNccl fake_;
  std::unique_ptr<RealCompany> members_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, BackendKind kind) {
  constexpr const char* kNames[] = {"simulated", "shared_memory", "tcp", "nccl"};
  return out << kNames[static_cast<std::size_t>(kind)];
}

std::unique_ptr<Company> Company::form(BackendKind kind, int size) {
  switch (kind) {
    case BackendKind::simulated:
      return std::make_unique<SimulatedCompany>(size);
    case BackendKind::shared_memory:
      return std::make_unique<RealCompany>(size, make_shared_memory);
    case BackendKind::tcp:
      return std::make_unique<RealCompany>(size, make_tcp);
    case BackendKind::nccl:
      return std::make_unique<NcclCompany>(size);
  }
  return nullptr;
}

BackendTraits traits_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::simulated:
      return {.runs_in_real_time = false};
    case BackendKind::shared_memory:
    case BackendKind::tcp:
      return {};
    case BackendKind::nccl:
      return {.names_missing_members = false,
              .finds_disagreement = false,
              .has_reference_arithmetic = false,
              .reduces_16_bit_integers = false,
              .has_products_and_bits = false,
              .moves_rows = false,
              .needs_one_order_of_groups = true};
  }
  return {};
}

void Company::run_on(StreamView stream, std::function<void()> body) {
  stream->enqueue("test", {}, std::move(body));
}

std::vector<Stream> Company::create_streams() {
  std::vector<Stream> streams;
  for (int i = 0; i < size(); ++i) streams.push_back(device(i).create_stream({.name = "test"}).value());
  return streams;
}

GroupOptions Company::options_of(int member, const std::string& name, core::Epoch epoch) const {
  GroupOptions options{.job = job_, .epoch = epoch, .name = name, .members = {}, .self = {member + 10}};
  for (int i = 0; i < size(); ++i) options.members.push_back({i + 10});
  return options;
}

std::shared_ptr<OperationStatus> Stage::post(int member, Operation operation) {
  const auto i = static_cast<std::size_t>(member);
  auto status = groups[i]->post(std::move(operation), streams[i].get());
  CHECK(status.has_value(), "a correct operation is accepted");
  return *status;
}

std::string outcome_of(const OperationStatus& status) {
  const auto result = status.result();
  if (!result) return "running";
  return result->has_value() ? "ok" : core::to_string(result->error().code);
}

std::string message_of(const OperationStatus& status) {
  const auto result = status.result();
  return result && !result->has_value() ? result->error().message : "";
}

}  // namespace troupe::gpu
