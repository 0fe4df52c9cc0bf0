#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// `nccl` stands for the back-end with the emulated library of tests/nccl_emulation.
enum class BackendKind { simulated, shared_memory, tcp, nccl };
std::ostream& operator<<(std::ostream& out, BackendKind kind);

/// Where back-ends differ, as group.hpp says.
struct BackendTraits {
  bool runs_in_real_time = true;
  bool names_missing_members = true;  ///< when a deadline passes
  bool finds_disagreement = true;
  /// Sums in rank order, in fp32 for narrow types; else only up to rounding, in some order.
  bool has_reference_arithmetic = true;
  bool reduces_16_bit_integers = true;
  bool has_products_and_bits = true;
  bool moves_rows = true;  ///< that an all_to_all names
  bool needs_one_order_of_groups = false;
};
BackendTraits traits_of(BackendKind kind);

/// The members of one job as one process, each with a device and back-end of its own. Tests post for one
/// member after the other and then settle(): virtual time runs, or the members' streams are waited for.
class Company {
 public:
  using Groups = std::vector<std::unique_ptr<Group>>;

  virtual ~Company() = default;
  static std::unique_ptr<Company> form(BackendKind kind, int size);

  virtual int size() const = 0;
  virtual Device& device(int member) = 0;
  /// Errors end the test's process: here groups are expected to come up.
  virtual Groups create_groups(const std::string& name, core::Epoch epoch) = 0;
  virtual core::Result<std::unique_ptr<Group>> create_group(int member, GroupOptions options) = 0;
  /// Returns when all of `streams` are empty.
  virtual void settle(const std::vector<Stream>& streams) = 0;
  /// Like StreamQueue::enqueue(), also where the device takes no host work from Troupe.
  virtual void run_on(StreamView stream, std::function<void()> body);

  /// One stream for each member.
  std::vector<Stream> create_streams();
  GroupOptions options_of(int member, const std::string& name, core::Epoch epoch) const;

 protected:
  std::string job_;
};

/// A company with one group and one stream a member, which most tests need.
struct Stage {
  Stage(BackendKind kind, int size)
      : company(Company::form(kind, size)),
        streams(company->create_streams()),
        groups(company->create_groups("dp", core::Epoch{1})),
        traits_(traits_of(kind)) {}

  int size() const { return company->size(); }
  const BackendTraits& traits() const { return traits_; }
  /// Posts for one member; the post itself must be accepted.
  std::shared_ptr<OperationStatus> post(int member, Operation operation);
  void settle() { company->settle(streams); }

  std::unique_ptr<Company> company;
  std::vector<Stream> streams;
  Company::Groups groups;

 private:
  BackendTraits traits_;
};

/// "ok", or the error's code, or "running".
std::string outcome_of(const OperationStatus& status);
std::string message_of(const OperationStatus& status);

}  // namespace troupe::gpu
