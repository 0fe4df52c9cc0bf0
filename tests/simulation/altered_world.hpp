#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "actors/roles/checkpoint_writer.hpp"
#include "actors/shell/rank_world.hpp"

namespace troupe::actors {

/// Another rank's world, in which the CheckpointWriter may have another structure than its session gave it,
/// machines and their work may be others, and storages and the host device may be seen otherwise.
class AlteredWorld final : public RankWorld {
 public:
  explicit AlteredWorld(RankWorld& world) : world_(world) {}

  std::function<void(core::SaveStructure&)> alter_structure;
  std::function<void(const messages::Address&, std::unique_ptr<Machine>&)> alter_machine;
  std::function<void(const messages::Address& from, const Work&)> before_work;
  Storage* other_storage = nullptr;
  Storage* other_local_storage = nullptr;
  gpu::Device* other_host_device = nullptr;

  core::Rank rank() const override { return world_.rank(); }
  core::WorldSize world_size() const override { return world_.world_size(); }
  core::Epoch epoch() const override { return world_.epoch(); }
  const std::string& job() const override { return world_.job(); }
  std::uint64_t unique() override { return world_.unique(); }
  gpu::Device& device() override { return world_.device(); }
  TrainerPatience& patience() override { return world_.patience(); }
  core::Result<gpu::CollectiveBackend*> collectives(gpu::Rendezvous& rendezvous) override {
    return world_.collectives(rendezvous);
  }
  gpu::Device& host_device() override {
    return other_host_device != nullptr ? *other_host_device : world_.host_device();
  }
  core::Result<gpu::CollectiveBackend*> host_collectives(gpu::Rendezvous& rendezvous) override {
    return world_.host_collectives(rendezvous);
  }
  bool is_used() const override { return world_.is_used(); }
  core::Result<void> open(Hooks hooks) override {
    if (before_work) {
      hooks.perform = [this, perform = std::move(hooks.perform)](const auto& from, const Work& work) {
        before_work(from, work);
        perform(from, work);
      };
    }
    return world_.open(std::move(hooks));
  }
  void spawn(messages::Address address, std::unique_ptr<Machine> machine) override {
    if (alter_structure && address.role == messages::Role::checkpoint_writer) {
      auto config = static_cast<CheckpointWriterMachine&>(*machine).config();
      alter_structure(config.structure);
      machine = std::make_unique<CheckpointWriterMachine>(std::move(config));
    }
    if (alter_machine) alter_machine(address, machine);
    world_.spawn(address, std::move(machine));
  }
  core::Result<void> start() override { return world_.start(); }
  void post(messages::Envelope envelope) override { world_.post(std::move(envelope)); }
  void blame(const messages::Address& role, std::string what) override {
    world_.blame(role, std::move(what));
  }
  void close() override { world_.close(); }
  Storage* storage() override { return other_storage != nullptr ? other_storage : world_.storage(); }
  std::size_t read_threads() const override { return world_.read_threads(); }
  void run_io(std::function<void()> job) override { world_.run_io(std::move(job)); }
  Storage* local_storage() override {
    return other_local_storage != nullptr ? other_local_storage : world_.local_storage();
  }
  void run_local_io(std::function<void()> job) override { world_.run_local_io(std::move(job)); }
  Logger log(Subsystem of) const override { return world_.log(of); }
  std::vector<WaitReport> wait_reports() override { return world_.wait_reports(); }
  std::uint64_t message_count() const override { return world_.message_count(); }

 private:
  RankWorld& world_;
};

}  // namespace troupe::actors
