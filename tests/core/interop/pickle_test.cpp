#include "core/interop/pickle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <limits>

#include "core/interop/pickle_writer.hpp"
#include "tests/core/interop/golden.hpp"

namespace troupe::core {
namespace {

using ::testing::HasSubstr;

PickleDocument parsed(std::span<const std::byte> bytes) {
  return PickleDocument::parse(bytes).value();
}

std::string refusal_of_pickle(std::span<const std::byte> bytes, const PickleLimits& limits = {}) {
  const auto result = PickleDocument::parse(bytes, limits);
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(result ? Errc::internal : result.error().code, Errc::corrupt);
  return result ? "" : result.error().message;
}

/// All that a document says, shared nodes written out.
std::string shown(const PickleNode& node) {
  const auto items = [](const PickleNode& list) {
    std::string text;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list.kind() == PickleKind::dict) text += shown(list.key(i)) + ":";
      text += shown(list.kind() == PickleKind::dict ? list.value(i) : list.item(i)) + ",";
    }
    return text;
  };
  switch (node.kind()) {
    case PickleKind::none:
      return "None";
    case PickleKind::boolean:
      return *node.as_boolean() ? "True" : "False";
    case PickleKind::integer:
      return std::to_string(*node.as_integer());
    case PickleKind::long_integer:
      return "long " + hex_of(*node.as_bytes());
    case PickleKind::real:
      return "real " + std::to_string(std::bit_cast<std::uint64_t>(*node.as_real()));
    case PickleKind::text:
      return "'" + std::string(*node.as_text()) + "'";
    case PickleKind::bytes:
      return "b" + hex_of(*node.as_bytes());
    case PickleKind::list:
      return "[" + items(node) + "]";
    case PickleKind::tuple:
      return "(" + items(node) + ")";
    case PickleKind::dict:
    case PickleKind::set:
      return "{" + items(node) + "}";
    case PickleKind::global:
      return class_name(node);
    case PickleKind::object:
      return (node.is_new() ? "new " : "call ") + shown(*node.callable()) + shown(*node.arguments()) +
             (node.items() ? shown(*node.items()) : "") + (node.state() ? "=" + shown(*node.state()) : "");
    case PickleKind::persistent:
      return "id " + shown(*node.persistent_id());
  }
  return "?";
}

// pickle.dumps(values, protocol=4) of CPython 3.11, one value of every kind and size.
constexpr std::string_view kEverything =
    "800495c5000000000000005d94284e88894b004bff4d00014dffff4a000001004affffffff4a000000804affff"
    "ff7f8a0500000080008a060000000000ff8a08ffffffffffffff7f8a0800000000000000808a09000000000000"
    "000001473ff80000000000004780000000000000008c00948c0361c3a9944300944302616294294b0185944b01"
    "4b0286944b014b024b038794284b014b024b034b0474945d945d944b01615d94284b014b02657d947d948c0161"
    "944b01737d9428680e4b018c0162944b02758f948f94284b0190652e";

TEST(Pickle, ReadsWhatPythonWrites) {
  const auto bytes = bytes_of_hex(kEverything);

  EXPECT_EQ(shown(parsed(bytes).root()),
            "[None,True,False,0,255,256,65535,65536,-1,-2147483648,2147483647,2147483648,-109951162"
            "7776,9223372036854775807,-9223372036854775808,long 000000000000000001,real 46094342186"
            "13702656,real 9223372036854775808,'','a\u00e9',b,b6162,(),(1,),(1,2,),(1,2,3,),(1,2,3,"
            "4,),[],[1,],[1,2,],{},{'a':1,},{'a':1,'b':2,},{},{1,},]");
}

// pickle.dumps(integers, protocol=2) of CPython 3.11, whose tuple is remembered at the end.
constexpr std::string_view kIntegers =
    "8002284b004bff4d00014dffff4a000001004affffffff4a80ffffff4a000000804affffff7f8a050000008000"
    "8a05ffffff7fff8a060000000000ff8a08ffffffffffffff7f8a0800000000000000807471002e";

TEST(Pickle, WritesIntegersOfEverySizeAsPythonDoes) {
  PickleWriter writer(2);

  writer.mark();
  for (const std::int64_t value : {0L, 255L, 256L, 65535L, 65536L, -1L, -128L, -2147483648L, 2147483647L,
                                   2147483648L, -2147483649L, -1099511627776L, 9223372036854775807L}) {
    writer.integer(value);
  }
  writer.integer(std::numeric_limits<std::int64_t>::min());
  writer.tuple(14);
  writer.remember();

  EXPECT_EQ(hex_of(writer.finish()), kIntegers);
}

// pickle.dumps([OrderedDict(a=1), pathlib.PurePosixPath('x'), argparse.Namespace(lr=2)], protocol=4)
constexpr std::string_view kObjects =
    "80049578000000000000005d94288c0b636f6c6c656374696f6e73948c0b4f7264657265644469637494939429"
    "52948c0161944b01738c07706174686c6962948c0d50757265506f736978506174689493948c01789485945294"
    "8c086172677061727365948c094e616d6573706163659493942981947d948c026c72944b027362652e";

// Covers save-30.
TEST(Pickle, KeepsObjectsAsDataWithItemsAndState) {
  const auto bytes = bytes_of_hex(kObjects);
  const auto document = parsed(bytes);

  EXPECT_EQ(shown(document.root()),
            "[call collections.OrderedDict(){'a':1,},call pathlib.PurePosixPath('x',),"
            "new argparse.Namespace()={'lr':2,},]");
  EXPECT_TRUE(document.root().item(2).is_object_of("argparse", "Namespace"));
  EXPECT_EQ(document.root().item(2).state()->find("lr")->as_integer(), 2);
  EXPECT_EQ(class_name(document.root().item(0)), "collections.OrderedDict");
}

TEST(Pickle, AnswersAQuestionThatDoesNotFitWithNothing) {
  const auto bytes = bytes_of_hex(
      "80044b01"
      "2e");
  const auto document = parsed(bytes);
  const PickleNode node = document.root();

  EXPECT_EQ(node.as_integer(), 1);
  EXPECT_FALSE(node.as_text() || node.as_real() || node.as_boolean() || node.as_bytes());
  EXPECT_FALSE(node.find("a") || node.state() || node.callable() || node.persistent_id());
  EXPECT_EQ(node.size(), 0U);
  EXPECT_EQ(node.module(), "");
}

TEST(Pickle, RefusesEveryPrefix) {
  const auto bytes = bytes_of_hex(kEverything);

  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(PickleDocument::parse(std::span(bytes).first(length)).has_value()) << length;
  }
}

TEST(Pickle, NamesTheOpcodeThatItDoesNotRun) {
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 'N', 'i', 'o', 's', '\n'})),
              HasSubstr("INST (0x69) at byte 3"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 'o'})), HasSubstr("OBJ"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 0x92})), HasSubstr("NEWOBJ_EX"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 0x82, 1})), HasSubstr("EXT1"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 'P', 'x', '\n'})), HasSubstr("PERSID"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 0xff})), HasSubstr("no opcode (0xff) at byte 2"));
}

// Covers save-30.
TEST(Pickle, RunsExactlyTheOpcodesOfCheckpoints) {
  // Every opcode that the machine knows complains about its operands or runs; the others are refused as such.
  const std::string_view known =
      "(.0BCGJKMNQRXabcehjqrstu)]}\x81\x85\x86\x87\x88\x89\x8a\x8c\x8d\x8f\x90\x93\x94\x95";
  for (int code = 0; code < 256; ++code) {
    const std::string message = refusal_of_pickle(bytes_of({0x80, 4, code}));
    const bool is_known = known.find(static_cast<char>(code)) != std::string_view::npos;
    EXPECT_EQ(message.find("not one of the opcodes") == std::string::npos, is_known) << message;
  }
}

TEST(Pickle, RefusesWhatTheMachineCannotDo) {
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04.")), HasSubstr("one value must be left, there are 0"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04NN.")), HasSubstr("there are 2"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N.N")), HasSubstr("1 bytes follow the end"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04(NN\x86(.")), HasSubstr("one value must be left"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N\x86.")), HasSubstr("takes 2 values, there are 1"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N(N\x86.")), HasSubstr("takes 2 values, there are 1"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04Nt.")), HasSubstr("needs a MARK"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N(Ne.")), HasSubstr("it extends a list, not a none"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04}(Ne.")), HasSubstr("it extends a list, not a dict"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04}(Nu.")), HasSubstr("a key has no value"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04(Ne.")), HasSubstr("there is no list before it"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04NNR.")), HasSubstr("the arguments must be a tuple"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04NNb.")), HasSubstr("a none takes no state"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N)RNbNb.")), HasSubstr("has its state already"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04NN\x93.")), HasSubstr("named by two texts"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04h\x01.")), HasSubstr("memo entry 1 of 0"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04Nq\x07.")), HasSubstr("memo entry 7 comes after 0"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04X\x09\x01\x01\x01"
                                         "abc.")),
              HasSubstr("bytes of text, 4 are left"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04\x8c\x02\xc3(.")), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04"
                                         "cabc")),
              HasSubstr("must end with a new line"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x06N.")), HasSubstr("a protocol from 2 to 5"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("(lp0\n.")), HasSubstr("must begin with PROTO"));
}

TEST(Pickle, RefusesWhatContainsItself) {
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, ']', 0x94, '(', 'h', 0, 'e', '.'})),
              HasSubstr("one list contains itself"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, ']', 0x94, 'h', 0, 0x85, 'a', '.'})),
              HasSubstr("contains itself"));
  EXPECT_THAT(refusal_of_pickle(bytes_of({0x80, 4, 'N', ')', 'R', 0x94, 'h', 0, 'b', '.'})),
              HasSubstr("one object contains itself"));
}

TEST(Pickle, HoldsItsLimits) {
  std::string deep = "\x80\x04N";
  for (int i = 0; i < 128; ++i) deep += '\x85';
  deep += '.';

  EXPECT_THAT(refusal_of_pickle(bytes_of(deep)), HasSubstr("more than 128 levels"));
  EXPECT_TRUE(PickleDocument::parse(bytes_of(deep.erase(3, 1))).has_value());
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04]]]]]."), {.nodes = 6}), HasSubstr("more than 6 values"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N\x94\x94\x94."), {.memo = 2}),
              HasSubstr("more than 2 memo entries"));
  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04N."), {.bytes = 3}), HasSubstr("4 bytes, at most 3"));
}

TEST(Pickle, HasLittleMoreThanOneNodePerTwoBytes) {
  const std::string many = std::string(20'000, ']') + ".";
  std::string list = "\x80\x04](";
  for (int i = 0; i < 20'000; ++i) list += "K\x01";

  EXPECT_THAT(refusal_of_pickle(bytes_of("\x80\x04" + many)),
              HasSubstr("more than 14097 values in 20003 bytes"));
  EXPECT_EQ(parsed(bytes_of(list + "e.")).root().size(), 20'000U);
}

TEST(Pickle, KeepsTheItemsOfListsThatGrowByTurns) {
  // Lists "a" and "b" in a tuple, to which 1, 2, 3, ... and 101, 102, ... are added one after the other, and
  // then 100 at once to "a".
  std::string text = "\x80\x04]\x94]\x94\x86\x94";
  for (int i = 1; i <= 100; ++i) {
    text += std::string("h\0K", 3) + static_cast<char>(i) + "a0";
    text += std::string("h\1K", 3) + static_cast<char>(100 + i) + "a0";
  }
  text += std::string("h\0(", 3);
  for (int i = 0; i < 100; ++i) text += 'N';
  text += "e0.";

  const auto bytes = bytes_of(text);
  const auto document = parsed(bytes);

  ASSERT_EQ(document.root().size(), 2U);
  const PickleNode a = document.root().item(0);
  const PickleNode b = document.root().item(1);
  ASSERT_EQ(a.size(), 200U);
  ASSERT_EQ(b.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(a.item(static_cast<std::size_t>(i)).as_integer(), i + 1);
    EXPECT_EQ(b.item(static_cast<std::size_t>(i)).as_integer(), i + 101);
    EXPECT_EQ(a.item(static_cast<std::size_t>(100 + i)).kind(), PickleKind::none);
  }
}

TEST(Pickle, CountsTheLevelsOfSharedNodes) {
  // Each of 200 lists contains the one before, twice; all but the last are remembered.
  std::string shared = "\x80\x04]\x94";
  for (int i = 0; i < 200; ++i)
    shared += std::string("0](h") + static_cast<char>(i) + 'h' + static_cast<char>(i) + "e\x94";
  shared += '.';

  EXPECT_THAT(refusal_of_pickle(bytes_of(shared)), HasSubstr("more than 128 levels"));
}

TEST(Pickle, EncodesSharedNodesOnce) {
  std::string shared = "\x80\x04]\x94";
  for (int i = 0; i < 100; ++i)
    shared += std::string("0](h") + static_cast<char>(i) + 'h' + static_cast<char>(i) + "e\x94";
  shared += '.';
  const auto bytes = bytes_of(shared);

  const auto encoded = encode(parsed(bytes));

  EXPECT_LT(encoded.size(), 1000U);
  EXPECT_EQ(encode(parsed(encoded)), encoded);
}

TEST(Pickle, EncodesWhatItParsed) {
  // Protocol 2 has no bytes, so what holds some comes back with calls in their place.
  const std::vector<std::pair<std::string_view, int>> cases{
      {kEverything, 4}, {kIntegers, 4}, {kObjects, 4}, {kIntegers, 2}, {kObjects, 2}};
  for (const auto& [hex, protocol] : cases) {
    const auto bytes = bytes_of_hex(hex);
    const auto document = parsed(bytes);

    const auto encoded = encode(document, protocol);

    EXPECT_EQ(encode(parsed(encoded), protocol), encoded);
    EXPECT_EQ(shown(parsed(encoded).root()), shown(document.root()));
  }
}

TEST(Pickle, EncodesTheMetadataOfPyTorch) {
  for (const auto* name : {"plain/.metadata", "mesh/.metadata", "fsdp/.metadata", "plans/.metadata"}) {
    const auto bytes = golden_bytes(name);
    const auto document = parsed(bytes);

    const auto encoded = encode(document);

    EXPECT_EQ(shown(parsed(encoded).root()), shown(document.root())) << name;
  }
}

TEST(Pickle, TakesMemoEntriesBeyondOneByte) {
  PickleWriter writer(2);
  writer.mark();
  for (int i = 0; i < 300; ++i) writer.text("t" + std::to_string(i));
  writer.text("t299");
  writer.text("t0");
  writer.tuple(302);

  const auto bytes = writer.finish();
  const auto document = parsed(bytes);

  EXPECT_EQ(document.root().item(300).as_text(), "t299");
  EXPECT_EQ(document.root().item(301).as_text(), "t0");
  EXPECT_EQ(document.root().item(301).id(), document.root().item(0).id());
}

RC_GTEST_PROP(Pickle, NeverFailsOtherwiseThanWithAnError, (std::vector<std::uint8_t> tail)) {
  auto bytes = bytes_of({0x80, 4});
  for (const std::uint8_t byte : tail) bytes.push_back(static_cast<std::byte>(byte));
  const auto document = PickleDocument::parse(bytes);
  RC_ASSERT(document.has_value() || document.error().code == Errc::corrupt);
}

}  // namespace
}  // namespace troupe::core
