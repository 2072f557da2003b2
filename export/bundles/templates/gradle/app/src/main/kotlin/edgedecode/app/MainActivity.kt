package edgedecode.app

import android.app.Activity
import android.os.Bundle as SavedState
import android.util.Log
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import java.io.File
import java.util.concurrent.Executors

/** A question, its answer as it is written, and a button to stop. Models run on a thread of their own. */
class MainActivity : Activity() {
    private val worker = Executors.newSingleThreadExecutor()
    private lateinit var question: EditText
    private lateinit var button: Button
    private lateinit var shown: TextView

    /** An answer is being written; only the main thread uses it. */
    private var running = false

    @Volatile
    private var stop = false

    /** Opened by the first question; only the worker uses it. */
    private var session: Session? = null

    /** What stays open between questions. */
    private class Session(val bundle: Bundle, val tokenizer: Tokenizer, val models: Models)

    override fun onCreate(saved: SavedState?) {
        super.onCreate(saved)
        question = EditText(this).apply { hint = getString(R.string.question) }
        button = Button(this).apply { setOnClickListener { if (running) stop = true else start() } }
        shown = TextView(this).apply { setTextIsSelectable(true) }
        val column = LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            fitsSystemWindows = true
            addView(question)
            addView(button)
            addView(ScrollView(this@MainActivity).apply { addView(shown) })
        }
        setContentView(column)
        label()
    }

    override fun onDestroy() {
        stop = true
        worker.execute { session?.apply { models.close(); tokenizer.close() } }
        worker.shutdown()
        super.onDestroy()
    }

    private fun start() {
        val text = question.text.toString().trim()
        if (text.isEmpty()) return
        running = true
        stop = false
        label()
        show(getString(R.string.opening))
        worker.execute {
            try {
                answer(session ?: opened().also { session = it }, text)
            } catch (error: Throwable) { // a native library that is missing and full memory are no Exceptions
                Log.e("edgedecode", "no answer", error)
                show(error.message ?: error.toString())
            }
            runOnUiThread {
                running = false
                label()
            }
        }
    }

    private fun opened(): Session {
        val folder = BundleFolder(this)
        val root = folder.root()
        val bundle = Bundle.parse(File(root, Bundle.NAME).readText())
        val models = Models.open(root, bundle, folder.chip(root), applicationInfo.nativeLibraryDir)
        return Session(bundle, DjlTokenizer(File(root, bundle.tokenizer)), models)
    }

    private fun answer(session: Session, text: String) = with(session) {
        // The chat template, rendered by edgedecode for one question, which goes in place of {user}.
        val frame = assets.open("prompt.txt").bufferedReader().use { it.readText() }
        val prompt = tokenizer.encode(frame.replace("{user}", text))
        if (prompt.size >= models.target.context) throw BundleException(getString(R.string.too_long))
        models.target.crop(0)
        models.draft?.crop(0)
        val tokens = mutableListOf<Int>()
        val started = System.nanoTime()
        val answer = decode(
            models.target, models.draft, prompt, bundle.maxTokens, bundle.ends,
            draftLength = bundle.plan.draftLength,
            leastChance = bundle.plan.leastChance,
            choose = bundle.sampler(seed = started),
            onRound = { round ->
                tokens += round.chosen
                show(tokenizer.decode(tokens))
                !stop
            },
        )
        val seconds = (System.nanoTime() - started) / 1e9
        val counts = "${answer.tokens.size} tokens in ${answer.rounds.size} rounds"
        Log.i("edgedecode", "$counts, $seconds s on ${models.provider}")
    }

    private fun show(text: String) = runOnUiThread { shown.text = text }

    private fun label() = button.setText(if (running) R.string.stop else R.string.ask)
}
