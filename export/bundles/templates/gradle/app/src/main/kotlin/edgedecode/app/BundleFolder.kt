package edgedecode.app

import android.content.Context
import android.os.Build
import java.io.File
import java.io.FileNotFoundException

/** Where the bundle's files are on this device. */
class BundleFolder(private val context: Context) {
    /** The number of the chip, if the bundle has graphs for its NPU; null: the processor is used. */
    fun chip(root: File): Int? = chipIn(File(root, Bundle.SOC_MAP).takeIf { it.isFile }?.readText())

    /**
     * Return the folder with bundle.json: the one that install.sh pushed, else the AI pack's files, copied out once.
     *
     * onnxruntime maps weights from files, and files inside an APK are none. Only what this chip needs is copied.
     */
    fun root(): File {
        val pushed = File(PUSHED, "${context.packageName}/${context.getString(R.string.bundle)}")
        if (File(pushed, Bundle.NAME).canRead()) return pushed
        val text = asset(Bundle.NAME)
            ?: throw BundleException("no models: run install.sh, or build the app with its AI pack (README.md)")
        val root = File(context.filesDir, "bundle")
        val listing = File(root, Bundle.NAME)
        if (listing.isFile && listing.readText() == text) return root
        root.deleteRecursively() // an older version, or a copy that was cut off
        val map = asset(Bundle.SOC_MAP)
        val chip = chipIn(map)
        for (name in Bundle.parse(text).needed(chip)) copy(name, File(root, name))
        if (map != null) File(root, Bundle.SOC_MAP).writeText(map)
        listing.writeText(text) // last: it says that all is there
        return root
    }

    private fun chipIn(map: String?): Int? =
        if (map == null || Build.VERSION.SDK_INT < Build.VERSION_CODES.S) null else Bundle.chip(map, Build.SOC_MODEL)

    private fun asset(name: String): String? = try {
        context.assets.open("$ASSETS/$name").bufferedReader().use { it.readText() }
    } catch (_: FileNotFoundException) {
        null
    }

    private fun copy(name: String, file: File) {
        file.parentFile?.mkdirs()
        context.assets.open("$ASSETS/$name").use { input -> file.outputStream().use { input.copyTo(it) } }
    }

    private companion object {
        /** Apps can read here what install.sh wrote; for development. */
        const val PUSHED = "/data/local/tmp"

        /** The folder in the AI pack that `gradle copyBundle` fills. */
        const val ASSETS = "bundle"
    }
}
