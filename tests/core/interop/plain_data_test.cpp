#include "core/interop/plain_data.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/interop/pickle_writer.hpp"
#include "core/interop/torch_archive.hpp"
#include "tests/core/interop/golden.hpp"

namespace troupe::core {
namespace {

using ::testing::HasSubstr;

// What make_dcp.py saves as plain.pt.
TEST(PlainData, ReadsWhatTorchSaves) {
  const Value expected =
      Value::Map{{"bytes", Value::Bytes{std::byte{0}, std::byte{0x7f}, std::byte{0x80}, std::byte{0xff}}},
                 {"tuple", Value::tuple({1, "a", Value::tuple({2.5, nullptr})})},
                 {"ints", Value::List{0, -1, std::int64_t{1} << 31, -(std::int64_t{1} << 62)}},
                 {3, Value::tuple({2, 3})},
                 {"huge", Value::List{true, false}}};

  EXPECT_EQ(parse_torch_value(golden_bytes("archives/plain.pt")).value(), expected);
}

TEST(PlainData, NamesThePlaceOfWhatIsNotPlain) {
  const auto object = parse_torch_value(golden_bytes("archives/object.pt"));
  const auto tensor = parse_torch_value(golden_bytes("archives/tensors_in_dict.pt"));
  const auto integer = parse_torch_value(golden_bytes("archives/too_large_integer.pt"));

  EXPECT_EQ(object.error().code, Errc::unavailable);
  EXPECT_EQ(object.error().message, "plain data: an object of pathlib.PosixPath at ('path',) is not plain");
  EXPECT_THAT(tensor.error().message, HasSubstr("a tensor at ('a',)"));
  EXPECT_THAT(integer.error().message, HasSubstr("long integer at (0,) is not plain"));
}

TEST(PlainData, ReturnsWhatWasWritten) {
  const Value value =
      Value::Map{{"null", nullptr},
                 {"bools", Value::List{true, false}},
                 {"least", std::numeric_limits<std::int64_t>::min()},
                 {"reals", Value::List{0.1, -0.0, std::numeric_limits<double>::infinity(),
                                       std::numeric_limits<double>::quiet_NaN()}},
                 {"text", "\xc3\xa9\xf0\x9f\x8e\xad"},
                 {"bytes", Value::Bytes{std::byte{0xff}, std::byte{0x80}, std::byte{0x7f}, std::byte{0}}},
                 {"no bytes", Value::Bytes{}},
                 {"tuples", Value::List{Value::tuple({}), Value::tuple({1}), Value::tuple({1, 2, 3, 4})}},
                 {-7, Value::Map{{"", Value::List{}}}},
                 {"empty", Value::Map{}}};

  const auto archive = encode_torch_value(value).value();

  EXPECT_EQ(parse_torch_value(archive).value(), value);
}

TEST(PlainData, RefusesToWriteWhatItCannotRead) {
  Value deep;
  for (int i = 0; i <= kMaxValueDepth; ++i) deep = Value(Value::List{deep});

  EXPECT_THAT(encode_torch_value(deep).error().message, HasSubstr("more than 64 levels"));
  EXPECT_TRUE(encode_torch_value(deep.as_list()->front()).has_value());
  EXPECT_THAT(encode_torch_value(Value::List{"\xff"}).error().message, HasSubstr("at (0,) is not UTF-8"));
  EXPECT_THAT(encode_torch_value(Value::Map{{"\xff", 1}}).error().message, HasSubstr("not UTF-8"));
}

TEST(PlainData, RefusesASmallPickleOfManySharedLists) {
  // 40 lists, each of which has the one before twice: 2^40 values as a tree.
  PickleWriter pickle(2);
  pickle.tuple(0);
  for (int i = 0; i < 40; ++i) {
    const auto before = pickle.remember();
    pickle.recall(before);
    pickle.tuple(2);
  }

  const auto value = parse_torch_value(torch_archive(pickle.finish()));

  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code, Errc::corrupt);
  EXPECT_THAT(value.error().message, HasSubstr("beyond the memory that values of such files may take"));
}

TEST(PlainData, ChargesSharedTextsForEveryTimeTheyAreMeant) {
  // A list of 1000 times the same text of a kilobyte: a megabyte, and six as JSON when each must be escaped.
  const auto archive_of = [](char c) {
    PickleWriter pickle(2);
    pickle.empty_list();
    pickle.mark();
    for (int i = 0; i < 1000; ++i) pickle.text(std::string(1000, c));
    pickle.append_all();
    return torch_archive(pickle.finish());
  };
  const auto spent = [&](char c) {
    ValueBudget budget;
    const auto before = budget.bytes;
    EXPECT_TRUE(parse_torch_value(archive_of(c), budget));
    return before - budget.bytes;
  };
  ValueBudget small{1'000'000};

  const auto refused = parse_torch_value(archive_of('x'), small);

  EXPECT_EQ(spent('x'), 16 + 1000 * sizeof(Value) + 1000 * (16 + 1000));
  EXPECT_EQ(spent('\x01'), 16 + 1000 * sizeof(Value) + 1000 * (16 + 6000));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr(" is beyond the memory"));
}

TEST(PlainData, CutsWhatOthersNamedInItsMessages) {
  PickleWriter pickle(4);
  pickle.empty_dict();
  pickle.mark();
  pickle.text(std::string(100'000, 'k'));
  pickle.global(std::string(100'000, 'm'), std::string(100'000, 'c'));
  pickle.set_all();

  const auto value = parse_torch_value(torch_archive(pickle.finish()));

  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().message, "plain data: " + std::string(80, 'm') + "...." + std::string(80, 'c') +
                                       "... at ('" + std::string(60, 'k') + "...',) is not plain");
}

TEST(PlainData, RefusesKeysThatAreNoNames) {
  PickleWriter pickle(2);
  pickle.empty_dict();
  pickle.mark();
  pickle.boolean(true);
  pickle.none();
  pickle.set_all();

  const auto value = parse_torch_value(torch_archive(pickle.finish()));

  EXPECT_EQ(value.error().code, Errc::unavailable);
  EXPECT_THAT(value.error().message, HasSubstr("a key of the dict at () is a boolean"));
}

TEST(PlainData, RefusesTextThatOnlyLooksLikeBytes) {
  // U+0100 has no byte in Latin-1.
  PickleWriter pickle(2);
  pickle.global("_codecs", "encode");
  pickle.text("\xc4\x80");
  pickle.text("latin1");
  pickle.tuple(2);
  pickle.reduce();

  EXPECT_THAT(parse_torch_value(torch_archive(pickle.finish())).error().message, HasSubstr("_codecs.encode"));
}

}  // namespace
}  // namespace troupe::core
