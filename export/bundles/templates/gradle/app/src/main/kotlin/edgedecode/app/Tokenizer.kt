package edgedecode.app

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer
import java.io.File

/** Text to tokens and back. */
interface Tokenizer : AutoCloseable {
    /** Return a text's tokens; special tokens that are spelled out in it are recognized, none are added. */
    fun encode(text: String): List<Int>

    /** Return the text of tokens, without special ones. */
    fun decode(tokens: List<Int>): String
}

/** Hugging Face's tokenizers, which read the bundle's tokenizer.json, through DJL's build for Android. */
class DjlTokenizer(file: File) : Tokenizer {
    private val inner: HuggingFaceTokenizer = HuggingFaceTokenizer.builder()
        .optTokenizerPath(file.toPath())
        .optAddSpecialTokens(false) // the chat template has them
        .optTruncation(false) // else prompts are cut off at 512 tokens
        .optPadding(false)
        .build()

    override fun encode(text: String): List<Int> = inner.encode(text).ids.map { it.toInt() }

    override fun decode(tokens: List<Int>): String = inner.decode(LongArray(tokens.size) { tokens[it].toLong() }, true)

    override fun close() = inner.close()
}
