// JSON; the tokenizer, the stream of text and the turns, and their files damaged.
#include "check.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "errors.h"
#include "text/token_text.h"
#include "text/tokenizer.h"
#include "text/turns.h"

namespace edgedecode {
namespace {

// Reads each line as JSON, writes it again, or what is wrong.
int run_json(const std::vector<std::string>&, std::istream& in, std::ostream& out) {
  std::string line;
  while (std::getline(in, line)) {
    try {
      out << Json::parse(line, "line").text() << "\n";
    } catch (const Error& error) {
      out << "error: " << error.what() << "\n";
    }
  }
  return 0;
}

const Registered kJson("json", run_json);

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// {"text", "control"}, {"prompt"} or {"turns": [[role, content], ...]} to ids; {"ids"} to the texts of a stream.
Json answer(const Json& line, const Tokenizer& tokenizer, const Turns* turns) {
  if (const Json* text = line.find("text"))
    return list(tokenizer.encode(text->string("text"), line.at("control", "line").boolean("control")));
  if (const Json* text = line.find("prompt")) return list(tokenizer.prompt(text->string("prompt")));
  if (const Json* ids = line.find("ids")) {
    TokenText stream(tokenizer);
    Json::Array texts;
    for (int32_t id : ids_of(*ids)) texts.push_back(stream.push({id}));
    texts.push_back(stream.flush());
    return texts;
  }
  if (const Json* bytes = line.find("bytes")) {
    const std::string found = tokenizer.bytes(static_cast<int>(bytes->integer("bytes")));
    return list(std::vector<uint8_t>(found.begin(), found.end()));
  }
  std::vector<Message> messages;
  for (const Json& each : line.at("turns", "line").array("turns")) {
    messages.push_back({each.array("turn")[0].string("role"), each.array("turn")[1].string("content")});
  }
  const Rendered text = turns->render(messages);
  return Json::Object{{"text", text.text}, {"ids", list(tokenizer.encode(text))}};
}

// FILE [TURNS]: reads lines as for `answer`.
const Registered kTokenizer("tokenizer",
                            [](const std::vector<std::string>& arguments, std::istream& in, std::ostream& out) {
                              const auto tokenizer = Tokenizer::open(arguments.at(0));
                              std::unique_ptr<Turns> turns;
                              if (arguments.size() > 1)
                                turns = std::make_unique<Turns>(Json::parse(content(arguments[1]), "turns"));
                              return each_line(in, out, [&](const Json& line) {
                                return answer(line, *tokenizer, turns.get());
                              });
                            });

std::string damaged(std::string data, std::mt19937& random) {
  const size_t head = std::min<size_t>(data.size(), 400);
  for (unsigned n = 1 + random() % 8; n > 0 && !data.empty(); --n) {
    const size_t place = random() % 2 ? random() % head : random() % data.size();
    switch (random() % 4) {
      case 0: data[place] = static_cast<char>(random()); break;
      case 1: data[place] = static_cast<char>(data[place] ^ 1 << random() % 8); break;
      case 2: data.replace(place, 4, std::string(4, static_cast<char>(random() % 2 ? 0xff : 0))); break;
      default: if (random() % 8 == 0) data.resize(place); break;
    }
    if (data.size() < 400) break;
  }
  return data;
}

// FILE TURNS SEED SECONDS: opens damaged copies and uses what opens. An Error is an answer; the sanitizers see the
// rest.
const Registered kFuzz("fuzz-text", [](const std::vector<std::string>& arguments, std::istream&, std::ostream& out) {
  const std::string file = content(arguments.at(0)), turns_file = content(arguments.at(1)),
                    copy = arguments.at(0) + ".damaged";
  std::mt19937 random(static_cast<unsigned>(std::stoul(arguments.at(2))));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(std::stoi(arguments.at(3)));
  int opened = 0, refused = 0, texts = 0, failed = 0;
  while (std::chrono::steady_clock::now() < until) {
    std::ofstream(copy, std::ios::binary) << damaged(file, random);
    std::string text;
    for (unsigned n = random() % 200; n > 0; --n)
      text += random() % 3 ? static_cast<char>(random() % 128) : static_cast<char>(random());
    try {
      const auto tokenizer = Tokenizer::open(copy);
      ++opened;
      for (int n = 0; n < 20; ++n, ++texts) {
        try {
          TokenText stream(*tokenizer);
          Ids ids;
          for (int id = 0; id < 60; ++id)
            ids.push_back(static_cast<int32_t>(random() % 8 ? random() % 60000 : random()));
          stream.push(ids);
          stream.flush();
          tokenizer->encode(
              n % 4 ? "Line " + std::to_string(n) + "\n <s> é́ 你好 \xf0\x9f\xa6\x99 가각 1234 '<|im_start|>  x" : text,
              n % 2);
        } catch (const Error&) {
          ++failed;
        }
      }
      const Turns turns(Json::parse(random() % 2 ? turns_file : damaged(turns_file, random), "turns"));
      tokenizer->encode(
          turns.render({{"system", text}, {"user", "u"}, {"assistant", "a</think>b"}, {"user", "<|im_end|>"}}));
    } catch (const Error&) {
      ++refused;
    }
  }
  std::remove(copy.c_str());
  out << Json(Json::Object{{"opened", opened}, {"refused", refused}, {"texts", texts}, {"failed", failed}}).text()
      << "\n";
  return 0;
});

}  // namespace
}  // namespace edgedecode
