package edgedecode.app

/** A line about a file that cannot be used, for the user or the log. */
class BundleException(message: String) : Exception(message)

/**
 * Read JSON into maps, lists, strings, numbers (Long or Double), booleans and null.
 *
 * Android has org.json, but only on a device: in unit tests its classes are empty. So this small reader is used.
 */
fun parseJson(text: String): Any? = JsonReader(text).whole()

private class JsonReader(private val text: String) {
    private var at = 0

    fun whole(): Any? {
        val value = value()
        if (skip() < text.length) fail()
        return value
    }

    private fun value(): Any? {
        skip()
        return when (text.getOrNull(at)) {
            '{' -> entries('}') { key() to value() }.toMap()
            '[' -> entries(']') { value() }
            '"' -> string()
            't' -> word("true", true)
            'f' -> word("false", false)
            'n' -> word("null", null)
            else -> number()
        }
    }

    private fun <T> entries(end: Char, read: () -> T): List<T> {
        val found = mutableListOf<T>()
        at++
        skip()
        if (text.getOrNull(at) == end) {
            at++
            return found
        }
        while (true) {
            found += read()
            skip()
            when (text.getOrNull(at++)) {
                ',' -> skip()
                end -> return found
                else -> fail()
            }
        }
    }

    private fun key(): String {
        skip()
        val key = string()
        skip()
        if (text.getOrNull(at++) != ':') fail()
        return key
    }

    private fun string(): String {
        if (text.getOrNull(at++) != '"') fail()
        val found = StringBuilder()
        while (true) {
            when (val char = text.getOrNull(at++) ?: fail()) {
                '"' -> return found.toString()
                '\\' -> found.append(escaped())
                else -> found.append(char)
            }
        }
    }

    private fun escaped(): Char = when (val char = text.getOrNull(at++)) {
        'n' -> '\n'
        't' -> '\t'
        'r' -> '\r'
        'b' -> '\b'
        'f' -> '\u000C'
        '"', '\\', '/' -> char
        'u' -> {
            at += 4
            if (at > text.length) fail()
            (text.substring(at - 4, at).toIntOrNull(16) ?: fail()).toChar()
        }
        else -> fail()
    }

    private fun number(): Any {
        val start = at
        while (at < text.length && (text[at].isLetterOrDigit() || text[at] in "+-.")) at++
        val digits = text.substring(start, at)
        return digits.toLongOrNull() ?: digits.toDoubleOrNull() ?: fail()
    }

    private fun word(word: String, value: Any?): Any? {
        if (!text.startsWith(word, at)) fail()
        at += word.length
        return value
    }

    private fun skip(): Int {
        while (at < text.length && text[at] in " \t\r\n") at++
        return at
    }

    private fun fail(): Nothing = throw BundleException("no JSON at character $at")
}
